// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
)

// Serve starts servers on every address that the host has by now, on the given TCP and UDP ports, and
// watches ICMP echo requests (which the kernel answers). They run until the lab closes. Clients are told
// which host answered, and which client address it saw; [Host.Probe] speaks this protocol:
//
//	TCP: the line "HOST CLIENT-ADDRESS:PORT\n", then an echo of whatever comes
//	UDP: one datagram, the same line followed by the payload
func (h *Host) Serve(ports ...uint16) {
	h.lab.build("serving on "+h.Name, func() error {
		s := &server{host: h, conns: map[io.Closer]struct{}{}}
		h.lab.atClose(s.close)
		for _, addr := range h.Addrs() {
			for _, port := range ports {
				if err := s.listen(netip.AddrPortFrom(addr, port).String()); err != nil {
					return err
				}
			}
		}
		return s.watchEchoes()
	})
}

// server is what one Serve started.
type server struct {
	host *Host
	wg   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[io.Closer]struct{} // listeners and connections
}

func (s *server) listen(address string) error {
	ln, err := s.host.Listen("tcp", address)
	if err != nil {
		return err
	}
	s.serve(ln, func() { s.accept(ln) })
	pc, err := s.host.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	s.serve(pc, func() { s.answerDatagrams(pc) })
	return nil
}

func (s *server) watchEchoes() error {
	for _, v6 := range []bool{false, true} {
		pc, err := s.host.ListenPacket(icmpNetwork(v6), unspecified(v6).String())
		if err != nil {
			return err
		}
		s.serve(pc, func() { watchEchoes(s.host, pc, v6) })
	}
	return nil
}

// serve runs fn, which works on c until c is closed.
func (s *server) serve(c io.Closer, fn func()) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = c.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		defer func() {
			_ = c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
		fn()
	}()
}

func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *server) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		s.serve(conn, func() {
			if _, err := io.WriteString(conn, s.greeting(conn.RemoteAddr())); err == nil {
				// Not conn itself: the kernel-side copy keeps pipes open that nobody owns.
				_, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
			}
		})
	}
}

func (s *server) answerDatagrams(pc net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer: the client's matter
		}
		_, _ = pc.WriteTo(append([]byte(s.greeting(from)), buf[:n]...), from)
	}
}

func (s *server) greeting(client net.Addr) string {
	return s.host.Name + " " + client.String() + "\n"
}

// parseGreeting reads what greeting wrote, without the line's end.
func parseGreeting(line string) (Answer, error) {
	var a Answer
	var client string
	if n, err := fmt.Sscanf(line, "%s %s", &a.Host, &client); n != 2 {
		return a, fmt.Errorf("answer %s is not one of netlab's servers: %w", strconv.Quote(line), err)
	}
	addr, err := netip.ParseAddrPort(client)
	if err != nil {
		return a, fmt.Errorf("answer %s: %w", strconv.Quote(line), err)
	}
	a.Client = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	return a, nil
}

func unspecified(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
