// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/kpng/internal/netlab"
)

// GRE and SCTP are spoken over raw sockets: the kernel of a small machine has neither, and conntrack and NAT do not need
// it to. A question is one packet that carries a token, the answer one packet with the token, the name of the host and the
// client address that it saw. What SCTP sends are well-formed INIT and INIT ACK chunks, which is what conntrack lets pass.

const (
	rawAsk    = 'Q'
	rawAnswer = 'A'
	tokenLen  = 16
)

// codec puts a payload into packets of a protocol.
type codec struct {
	number int
	// wrap makes a packet; ports are not used where the protocol has none.
	wrap func(answer bool, from, to uint16, payload []byte) []byte
	// open is wrap's inverse.
	open func(packet []byte) (from, to uint16, payload []byte, ok bool)
}

var codecs = map[string]codec{
	GRE:  {number: 47, wrap: wrapGRE, open: openGRE},
	SCTP: {number: 132, wrap: wrapSCTP, open: openSCTP},
}

// SCTPOfKernel tells whether the kernel itself speaks SCTP by now: then it aborts what it does not know, and ours
// over raw sockets cannot be told from it.
func SCTPOfKernel() bool {
	known, err := os.ReadFile("/proc/net/protocols")
	return err == nil && bytes.Contains(known, []byte("SCTP"))
}

func (c codec) network(v6 bool) string {
	if v6 {
		return fmt.Sprintf("ip6:%d", c.number)
	}
	return fmt.Sprintf("ip4:%d", c.number)
}

// serveRaw answers GRE and SCTP on all addresses of a host until the test ends.
func serveRaw(t testing.TB, h *netlab.Host) {
	t.Helper()
	var wg sync.WaitGroup
	var open []net.PacketConn
	t.Cleanup(func() {
		for _, pc := range open {
			_ = pc.Close()
		}
		wg.Wait()
	})
	for name, c := range codecs {
		for _, addr := range h.Addrs() {
			pc, err := h.ListenPacket(c.network(addr.Is6()), addr.String())
			if err != nil {
				t.Fatalf("%s server on %s: %v", name, h.Name, err)
			}
			open = append(open, pc)
			wg.Go(func() { c.serve(h.Name, pc) })
		}
	}
}

func (c codec) serve(name string, pc net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		sport, dport, payload, ok := c.open(buf[:n])
		if !ok || len(payload) < 1+tokenLen || payload[0] != rawAsk {
			continue
		}
		client, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
		answer := append([]byte{rawAnswer}, payload[1:1+tokenLen]...)
		answer = fmt.Appendf(answer, "%s %s\n", name, netip.AddrPortFrom(client.Unmap(), sport))
		_, _ = pc.WriteTo(c.wrap(true, dport, sport, answer), from)
	}
}

func askRaw(ctx context.Context, h *netlab.Host, q netlab.Probe) (netlab.Answer, error) {
	c := codecs[q.Network]
	fail := func(err error) (netlab.Answer, error) {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w: %w", netlab.ErrNoAnswer, err)
		}
		return netlab.Answer{}, fmt.Errorf("nstest: %s question from %s to %s: %w", q.Network, h.Name, q.To, err)
	}
	var d net.Dialer
	if q.From.Addr().IsValid() {
		d.LocalAddr = &net.IPAddr{IP: q.From.Addr().AsSlice()}
	}
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = d.DialContext(ctx, c.network(q.To.Addr().Is6()), q.To.Addr().String())
		return err
	})
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	if t, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(t)
	}

	payload := make([]byte, 1+tokenLen)
	_, _ = rand.Read(payload) // never fails
	payload[0] = rawAsk
	port := q.From.Port()
	if port == 0 {
		port = 32768 + binary.BigEndian.Uint16(payload[1:])/4
	}
	if _, err := conn.Write(c.wrap(false, port, q.To.Port(), payload)); err != nil {
		return fail(err)
	}
	a, err := c.await(conn.(*net.IPConn), payload[1:])
	if err != nil {
		return fail(err)
	}
	return a, nil
}

// await reads until the answer with this token comes.
func (c codec) await(conn net.PacketConn, token []byte) (a netlab.Answer, err error) {
	buf := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buf) // unlike Read, leaves out the IPv4 header
		if err != nil {
			return a, err
		}
		_, _, payload, ok := c.open(buf[:n])
		if !ok || len(payload) < 1+tokenLen || payload[0] != rawAnswer || !bytes.Equal(payload[1:1+tokenLen], token) {
			continue
		}
		line, _, _ := strings.Cut(string(payload[1+tokenLen:]), "\n")
		var client string
		if _, err := fmt.Sscanf(line, "%s %s", &a.Host, &client); err != nil {
			return a, fmt.Errorf("answer %q: %w", line, err)
		}
		a.Client, err = netip.ParseAddrPort(client)
		return a, err
	}
}

// greLocal is an EtherType for experiments (IEEE 802), so that nobody takes what GRE carries for anything.
const greLocal = 0x88B5

func wrapGRE(_ bool, _, _ uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, greLocal), payload...) // no flags, version 0 (RFC 2784)
}

func openGRE(p []byte) (from, to uint16, payload []byte, ok bool) {
	if len(p) < 4 || binary.BigEndian.Uint32(p) != greLocal {
		return 0, 0, nil, false
	}
	return 0, 0, p[4:], true
}

// Of SCTP (RFC 9260): a common header of 12 bytes, then a chunk INIT or INIT ACK of 20 bytes and its parameters, one
// here, of a type that receivers are to skip.
const (
	sctpHeader    = 12
	sctpInit      = 20
	sctpParameter = 4
	sctpSkipped   = 0x8f00
	sctpTag       = 0x6b706e67
)

func wrapSCTP(answer bool, from, to uint16, payload []byte) []byte {
	for len(payload)%4 != 0 {
		payload = append(payload, 0)
	}
	kind, tag := byte(1), uint32(0)
	if answer {
		kind, tag = 2, sctpTag
	}
	be := binary.BigEndian
	p := be.AppendUint16(nil, from)
	p = be.AppendUint16(p, to)
	p = be.AppendUint32(p, tag)
	p = be.AppendUint32(p, 0) // checksum
	p = append(p, kind, 0)
	p = be.AppendUint16(p, uint16(sctpInit+sctpParameter+len(payload)))
	p = be.AppendUint32(p, sctpTag)
	p = be.AppendUint32(p, 1<<16) // receive window
	p = be.AppendUint16(p, 1)     // streams out
	p = be.AppendUint16(p, 1)     // streams in
	p = be.AppendUint32(p, 1)     // first sequence number
	p = be.AppendUint16(p, sctpSkipped)
	p = be.AppendUint16(p, uint16(sctpParameter+len(payload)))
	p = append(p, payload...)
	// The one field in SCTP that is little endian.
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

func openSCTP(p []byte) (from, to uint16, payload []byte, ok bool) {
	const start = sctpHeader + sctpInit + sctpParameter
	if len(p) < start || p[sctpHeader] != 1 && p[sctpHeader] != 2 {
		return 0, 0, nil, false
	}
	sum := binary.LittleEndian.Uint32(p[8:])
	clean := bytes.Clone(p)
	clear(clean[8:12])
	if sum != crc32.Checksum(clean, crc32.MakeTable(crc32.Castagnoli)) {
		return 0, 0, nil, false
	}
	return binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), p[start:], true
}
