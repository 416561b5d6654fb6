// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/test/bench/usage"
)

// path is a way from a client to a pod.
type path struct {
	name string
	node *node
	to   netip.AddrPort

	// Of each round: connections and bytes a second, and the processor time that a connection and a byte took, of both
	// ends and of the node between them: it says less of what else the machine does.
	rates, bytes, rateCPU, bytesCPU []float64
}

const (
	connectors = 4
	// socketTime bounds each step of a connection.
	socketTime = 3 * time.Second
)

// measure sends traffic for some time: new connections one after the other, then one that is used to the full.
func (p *path) measure(ctx context.Context, d time.Duration) error {
	for _, m := range []struct {
		send      func(context.Context, time.Duration) (float64, error)
		rate, cpu *[]float64
	}{{p.connections, &p.rates, &p.rateCPU}, {p.throughput, &p.bytes, &p.bytesCPU}} {
		used, began := usage.CPU(os.Getpid()), time.Now()
		rate, err := m.send(ctx, d)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		done := rate * time.Since(began).Seconds()
		*m.rate, *m.cpu = append(*m.rate, rate), append(*m.cpu, (usage.CPU(os.Getpid())-used).Seconds()/done)
	}
	return nil
}

// connections is how many connections a second can be opened, each of which is answered with a byte.
func (p *path) connections(ctx context.Context, d time.Duration) (float64, error) {
	began, counts := time.Now(), make([]int, connectors)
	group, ctx := errgroup.WithContext(ctx)
	for i := range connectors {
		group.Go(func() error {
			return p.node.client.Do(func() error {
				for time.Since(began) < d && ctx.Err() == nil {
					fd, err := connect(p.to)
					if err != nil {
						return err
					}
					if err := greeted(fd); err != nil {
						return err
					}
					counts[i]++
				}
				return ctx.Err()
			})
		})
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(began).Seconds(), nil
}

// throughput is how many bytes a second the server receives on one connection.
func (p *path) throughput(ctx context.Context, d time.Duration) (rate float64, err error) {
	p.node.server.bulk.Store(true)
	defer p.node.server.bulk.Store(false)
	var fd int
	if err := p.node.client.Do(func() (err error) { fd, err = connect(p.to); return err }); err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, bulkSize)
	before, began := p.node.server.received.Load(), time.Now()
	for time.Since(began) < d && ctx.Err() == nil {
		if err := uninterrupted(func() error { _, err := unix.Write(fd, buf); return err }); err != nil {
			return 0, fmt.Errorf("send: %w", err)
		}
	}
	return float64(p.node.server.received.Load()-before) / time.Since(began).Seconds(), ctx.Err()
}

// connect opens a connection from the network that the calling thread is in. It is reset when it is closed, so that
// its port can be used again at once.
func connect(to netip.AddrPort) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	bound := unix.NsecToTimeval(int64(socketTime))
	for _, set := range []func() error{
		func() error {
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		},
		func() error { return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &bound) },
		func() error { return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &bound) },
		func() error {
			return unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		},
	} {
		if err := set(); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("connect to %s: %w", to, err)
		}
	}
	return fd, nil
}

// greeted waits for the server's byte and closes the connection.
func greeted(fd int) error {
	defer func() { _ = unix.Close(fd) }()
	var who [1]byte
	return uninterrupted(func() error {
		n, err := unix.Read(fd, who[:])
		if err == nil && n != 1 {
			return errors.New("a connection was closed without an answer")
		}
		return err
	})
}

// uninterrupted repeats a system call that was interrupted: Go signals its threads, and the kernel does not go on by
// itself with a call that has a time limit. Connect, too, can be called again: it waits for the same connection.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
