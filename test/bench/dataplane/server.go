// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/internal/netlab"
)

// server is what runs in the pod: it accepts a connection, says the last byte of the address that it was reached at, and
// closes; or, in bulk mode, counts what it is sent. It makes system calls itself: on two processors the network
// poller of Go would be most of what is measured.
type server struct {
	fd       int
	bulk     atomic.Bool
	received atomic.Int64
	running  sync.WaitGroup
}

const (
	acceptors = 2
	backlog   = 4096
	bulkSize  = 256 << 10
)

func startServer(pod *netlab.Host) (*server, error) {
	s := &server{}
	err := pod.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(s.fd, &unix.SockaddrInet4{Port: podPort}); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(s.fd, backlog); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	for range acceptors {
		s.running.Add(1)
		go s.accept()
	}
	return s, nil
}

func (s *server) accept() {
	defer s.running.Done()
	for {
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			return // shut down
		}
		if s.bulk.Load() {
			go s.drain(fd)
			continue
		}
		greet(fd)
		_ = unix.Close(fd)
	}
}

func greet(fd int) {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return
	}
	if a, ok := local.(*unix.SockaddrInet4); ok {
		_, _ = unix.Write(fd, a.Addr[3:])
	}
}

func (s *server) drain(fd int) {
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, bulkSize)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 || err != nil {
			return
		}
		s.received.Add(int64(n))
	}
}

func (s *server) close() {
	_ = unix.Shutdown(s.fd, unix.SHUT_RDWR) // wakes the acceptors
	s.running.Wait()
	_ = unix.Close(s.fd)
}
