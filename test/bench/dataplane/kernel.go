// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/internal/netlab"
)

// commit is a change of the kernel's rules.
type commit struct {
	at       time.Time
	messages []byte // what the kernel told of it; nil where it tells nothing
}

// concerns says whether a commit is about a Service: one of its endpoints' addresses stands in it, in binary or as
// text (kube-proxy names chains after addresses). Where the kernel does not tell, every commit might be.
func (c commit) concerns(service int) bool {
	if c.messages == nil {
		return true
	}
	for j := range endpoints {
		ip := endpointIP(service, j)
		if bytes.Contains(c.messages, ip.AsSlice()) || bytes.Contains(c.messages, []byte(ip.String())) {
			return true
		}
	}
	return false
}

// watcher notes when the kernel's rules on a node change.
type watcher struct {
	commits chan commit
	fd      int
	stop    chan struct{}
	ended   chan error
}

const (
	// NFNLGRP_NFTABLES and NFT_MSG_NEWGEN are of the kernel's nfnetlink.h and nf_tables.h.
	groupNFTables = 7
	messageNewGen = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	// receiveBuffer holds the messages of a transaction of a whole large Service, many times over.
	receiveBuffer = 64 << 20
	pollKernel    = 500 * time.Microsecond
	wakeUp        = 50 * time.Millisecond
)

// watchNFTables subscribes to what nftables and iptables-nft write. The kernel makes the messages as part of the
// commit, some microseconds each: so nobody subscribes while thousands of Services are written for the first time.
func watchNFTables(h *netlab.Host) (*watcher, error) {
	w := newWatcher()
	err := h.Do(func() (err error) {
		w.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, err
	}
	wake := unix.NsecToTimeval(int64(wakeUp))
	err = errors.Join(
		unix.Bind(w.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer),
		unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
		unix.SetsockoptInt(w.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, groupNFTables))
	if err != nil {
		return nil, errors.Join(err, unix.Close(w.fd))
	}
	w.run(w.receive)
	return w, nil
}

// watchLegacy polls the number of rules of the IPv4 nat table of iptables-legacy, which tells nobody of changes. A
// Service with an endpoint less has a rule less.
func watchLegacy(h *netlab.Host) (*watcher, error) {
	w := newWatcher()
	err := h.Do(func() (err error) {
		w.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return nil, err
	}
	before, err := legacyRules(w.fd)
	if err != nil {
		return nil, errors.Join(err, unix.Close(w.fd))
	}
	w.run(func() error { return w.poll(before) })
	return w, nil
}

func newWatcher() *watcher {
	return &watcher{commits: make(chan commit, 1000), stop: make(chan struct{}), ended: make(chan error, 1)}
}

func (w *watcher) run(work func() error) { go func() { w.ended <- work() }() }

func (w *watcher) close() error {
	close(w.stop)
	return errors.Join(<-w.ended, unix.Close(w.fd))
}

func (w *watcher) stopped() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// drain forgets the commits so far and returns how many there were.
func (w *watcher) drain() (n int) {
	for ; len(w.commits) > 0; n++ {
		<-w.commits
	}
	return n
}

// wait returns when a commit was made that concerns a Service.
func (w *watcher) wait(ctx context.Context, service int, within time.Duration) (time.Time, error) {
	end := time.After(within)
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case c := <-w.commits:
			if c.concerns(service) {
				return c.at, nil
			}
		case err := <-w.ended:
			w.ended <- err
			return time.Time{}, fmt.Errorf("watching the kernel: %w", err)
		case <-end:
			return time.Time{}, fmt.Errorf("the kernel's rules for %s have not changed within %v", serviceName(service), within)
		}
	}
}

// receive reads messages until the watcher is closed. The one with the new generation ends a transaction.
func (w *watcher) receive() error {
	buf, transaction := make([]byte, 1<<20), []byte{}
	for !w.stopped() {
		n, _, err := unix.Recvfrom(w.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		now := time.Now()
		for rest := buf[:n]; len(rest) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(rest))
			if size < unix.NLMSG_HDRLEN || size > len(rest) {
				return fmt.Errorf("a message of %d bytes in %d", size, len(rest))
			}
			if binary.NativeEndian.Uint16(rest[4:]) == messageNewGen {
				w.commits <- commit{now, transaction}
				transaction = []byte{}
			} else {
				transaction = append(transaction, rest[:size]...)
			}
			rest = rest[min(len(rest), (size+3)&^3):]
		}
	}
	return nil
}

// tableInfo is struct ipt_getinfo of the kernel's ip_tables.h.
type tableInfo struct {
	Name                     [32]byte
	ValidHooks               uint32
	HookEntry, Underflow     [5]uint32
	EntryCount, TotalEntries uint32
}

func (w *watcher) poll(before uint32) error {
	for ; !w.stopped(); time.Sleep(pollKernel) {
		now, err := legacyRules(w.fd)
		if err != nil {
			return err
		}
		if now != before {
			w.commits <- commit{at: time.Now()}
			before = now
		}
	}
	return nil
}

func legacyRules(fd int) (uint32, error) {
	const getInfo = 64 // IPT_SO_GET_INFO
	info := tableInfo{Name: [32]byte{'n', 'a', 't'}}
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // as the kernel wants it
	if errno != 0 {
		return 0, fmt.Errorf("reading the size of iptables-legacy's nat table: %w", errno)
	}
	return info.EntryCount, nil
}
