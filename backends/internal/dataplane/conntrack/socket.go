// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// socket is a connection to the kernel's connection tracking, in the network namespace where it was opened.
type socket struct {
	fd       int
	buf      []byte
	sequence uint32
}

// errInterrupted: the table changed under a listing in a way that may have hidden entries.
var errInterrupted = errors.New("the listing was interrupted by a change")

// patience bounds the wait for an answer, which the kernel gives at once.
var patience = unix.Timeval{Sec: 10}

func open() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	s := &socket{fd: fd, buf: make([]byte, 1<<16)} // the kernel's messages have 32 KiB at most
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket: %w", err), s.close())
	}
	return s, nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

// send asks the kernel something about the table.
func (s *socket) send(kind, flags uint16, family uint8, attributes []byte) error {
	s.sequence++
	order := binary.NativeEndian
	b := order.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+sizeofNfgenmsg+len(attributes)))
	b = order.AppendUint16(b, unix.NFNL_SUBSYS_CTNETLINK<<8|kind)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = order.AppendUint32(b, s.sequence)
	b = order.AppendUint32(b, 0) // from us
	b = append(b, family, unix.NFNETLINK_V0, 0, 0)
	return unix.Sendto(s.fd, append(b, attributes...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

const sizeofNfgenmsg = 4

// receive hands over the entries of the next messages, until the answer is at its end. What it hands over is
// overwritten by the next.
func (s *socket) receive(entry func(attributes []byte)) (end bool, err error) {
	n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("netlink: %w", err)
	}
	return read(s.buf[:n], s.sequence, entry)
}

// read takes messages of the kernel apart, leaving out those that answer another question.
func read(b []byte, sequence uint32, entry func(attributes []byte)) (end bool, err error) {
	order := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		length, kind, flags := int(order.Uint32(b)), order.Uint16(b[4:]), order.Uint16(b[6:])
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return true, fmt.Errorf("netlink: a message of %d bytes in %d", length, len(b))
		}
		body, of := b[unix.SizeofNlMsghdr:length], order.Uint32(b[8:])
		b = b[min(aligned(length), len(b)):]
		if of != sequence {
			continue
		}
		if flags&unix.NLM_F_DUMP_INTR != 0 {
			err = errInterrupted // the rest of the entries is there all the same
		}
		switch {
		case kind == unix.NLMSG_DONE, kind == unix.NLMSG_ERROR:
			return true, errors.Join(err, code(body))
		case len(body) >= sizeofNfgenmsg:
			entry(body[sizeofNfgenmsg:])
		}
	}
	return false, err
}

// code is the error in the last message of an answer.
func code(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if n := int32(binary.NativeEndian.Uint32(body)); n != 0 {
		return unix.Errno(-n)
	}
	return nil
}

// list hands over the entries of the table that the query lets through. After errInterrupted all were that could be had.
func (s *socket) list(ctx context.Context, q query, entry func(attributes []byte)) error {
	if err := s.send(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, q.family(), q.attributes()); err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	var interrupted error
	for {
		end, err := s.receive(entry)
		if errors.Is(err, errInterrupted) {
			interrupted, err = errInterrupted, nil
		}
		switch {
		case err != nil:
			return fmt.Errorf("listing: %w", err)
		case end:
			return interrupted
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// remove deletes the entry, and tells whether it was still there.
func (s *socket) remove(e *entry) (bool, error) {
	if err := s.send(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, e.family, e.identity); err != nil {
		return false, fmt.Errorf("removing: %w", err)
	}
	for {
		end, err := s.receive(func([]byte) {})
		switch {
		case errors.Is(err, unix.ENOENT):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("removing: %w", err)
		case end:
			return true, nil
		}
	}
}
