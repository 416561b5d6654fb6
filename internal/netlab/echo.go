// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// An echo reply does not say who sent it, nor whom that host had before it. So each request carries a token
// nobody else knows, and the hosts of the lab that Serve look at the requests the kernel delivers to them.

const (
	tokenLen     = 16
	echoHeader   = 8 // type, code, checksum, identifier, sequence number
	echoRequest4 = 8
	echoReply4   = 0
	echoRequest6 = 128
	echoReply6   = 129
)

type token [tokenLen]byte

// echoes are the requests under way in a lab, by token.
type echoes struct {
	mu      sync.Mutex
	waiting map[token]chan Answer
}

func (e *echoes) expect(t token) <-chan Answer {
	ch := make(chan Answer, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = map[token]chan Answer{}
	}
	e.waiting[t] = ch
	return ch
}

func (e *echoes) forget(t token) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.waiting, t)
}

func (e *echoes) seen(t token, a Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ch := e.waiting[t]; ch != nil {
		delete(e.waiting, t) // the first sight counts
		ch <- a
	}
}

// watchEchoes reports the echo requests that reach a host, until the socket is closed.
func watchEchoes(h *Host, pc net.PacketConn, v6 bool) {
	request, _ := echoTypes(v6)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < echoHeader+tokenLen || buf[0] != request {
			continue
		}
		ip, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
		h.lab.echo.seen(token(buf[echoHeader:]), Answer{Host: h.Name, Client: netip.AddrPortFrom(ip.Unmap(), 0)})
	}
}

func (h *Host) probeICMP(ctx context.Context, p Probe) (Answer, error) {
	v6 := p.To.Addr().Is6()
	var conn net.Conn
	err := h.Do(func() (err error) {
		d := net.Dialer{}
		if p.From.Addr().IsValid() {
			d.LocalAddr = &net.IPAddr{IP: p.From.Addr().AsSlice()}
		}
		conn, err = d.DialContext(ctx, icmpNetwork(v6), p.To.Addr().String())
		return err
	})
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	defer obey(ctx, conn)()

	var t token
	_, _ = rand.Read(t[:]) // never fails
	seen := h.lab.echo.expect(t)
	defer h.lab.echo.forget(t)
	payload := append(t[:], p.payload()...)
	if p.Size > tokenLen {
		payload = payload[:p.Size]
	}
	if _, err := conn.Write(echoMessage(v6, p.From.Port(), payload)); err != nil {
		return Answer{}, err
	}
	if err := awaitReply(conn.(*net.IPConn), v6, payload); err != nil {
		return Answer{}, err
	}
	select {
	case a := <-seen:
		return a, nil
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("answered, but by a host of this lab that does not Serve (%w)", ctx.Err())
	}
}

// awaitReply reads until the reply with this payload comes. A raw socket is given every ICMP message from
// the address it is connected to.
func awaitReply(conn net.PacketConn, v6 bool, payload []byte) error {
	_, reply := echoTypes(v6)
	buf := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buf) // unlike Read, leaves out the IPv4 header
		if err != nil {
			return err
		}
		if n >= echoHeader+tokenLen && buf[0] == reply && bytes.Equal(buf[echoHeader:echoHeader+tokenLen], payload[:tokenLen]) {
			return sameBytes(payload, buf[echoHeader:n])
		}
	}
}

// echoMessage is an ICMP or ICMPv6 echo request. Without an identifier it gets one from the payload's random start, as
// conntrack tells pings apart by it.
func echoMessage(v6 bool, identifier uint16, payload []byte) []byte {
	request, _ := echoTypes(v6)
	m := make([]byte, echoHeader, echoHeader+len(payload))
	m[0] = request
	copy(m[4:6], payload)
	if identifier != 0 {
		binary.BigEndian.PutUint16(m[4:], identifier)
	}
	m[7] = 1 // sequence number
	m = append(m, payload...)
	if !v6 { // the kernel fills in ICMPv6's, which covers addresses
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	}
	return m
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func echoTypes(v6 bool) (request, reply byte) {
	if v6 {
		return echoRequest6, echoReply6
	}
	return echoRequest4, echoReply4
}

func icmpNetwork(v6 bool) string {
	if v6 {
		return "ip6:ipv6-icmp"
	}
	return "ip4:icmp"
}
