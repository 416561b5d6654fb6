// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// ErrNoAnswer is in the error of a probe that nobody answered in time. A refusal is another error: the
// operating system's, such as syscall.ECONNREFUSED or syscall.EHOSTUNREACH (use errors.Is).
var ErrNoAnswer = errors.New("no answer")

// DefaultProbeTimeout bounds a probe whose context has no deadline.
const DefaultProbeTimeout = 3 * time.Second

// Probe is a question to a server started by [Host.Serve]: who are you, and who do you think I am?
type Probe struct {
	// Network is "tcp", "udp" or "icmp" (an echo request).
	Network string
	// To is where it is sent; the port is not used for icmp.
	To netip.AddrPort
	// From is the source address, or port, or both; the zero values let the system choose. For icmp
	// the port is the identifier.
	From netip.AddrPort
	// Size is how many bytes of payload are sent and expected back; a few at least.
	Size int
}

// Answer is what the server said.
type Answer struct {
	// Host is the name of the host that answered.
	Host string
	// Client is the source address of the probe as that host saw it; the port is 0 for icmp.
	Client netip.AddrPort
}

func (a Answer) String() string { return fmt.Sprintf("%s, which saw %s", a.Host, a.Client) }

// Probe sends one probe from inside the host, once, and waits for the answer. The payload must come back unchanged.
func (h *Host) Probe(ctx context.Context, p Probe) (Answer, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultProbeTimeout)
		defer cancel()
	}
	var a Answer
	var err error
	switch p.Network {
	case "tcp":
		a, err = h.probeTCP(ctx, p)
	case "udp":
		a, err = h.probeUDP(ctx, p)
	case "icmp":
		a, err = h.probeICMP(ctx, p)
	default:
		err = fmt.Errorf(`network %q: want "tcp", "udp" or "icmp"`, p.Network)
	}
	if err == nil {
		return a, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	return Answer{}, fmt.Errorf("netlab: %s probe from %s to %s: %w", p.Network, h.Name, p.To, err)
}

func (h *Host) probeTCP(ctx context.Context, p Probe) (Answer, error) {
	conn, err := h.dialFrom(ctx, p, func(a netip.AddrPort) net.Addr { return net.TCPAddrFromAddrPort(a) })
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	defer obey(ctx, conn)()
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	a, err := parseGreeting(strings.TrimSuffix(line, "\n"))
	if err != nil {
		return a, err
	}
	payload := p.payload()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(payload)
		sent <- err
	}()
	echo := make([]byte, len(payload))
	_, err = io.ReadFull(r, echo)
	if err != nil {
		_ = conn.Close() // so that the writer ends too
	}
	if err = errors.Join(err, <-sent); err != nil {
		return a, err
	}
	return a, sameBytes(payload, echo)
}

func (h *Host) probeUDP(ctx context.Context, p Probe) (Answer, error) {
	conn, err := h.dialFrom(ctx, p, func(a netip.AddrPort) net.Addr { return net.UDPAddrFromAddrPort(a) })
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	defer obey(ctx, conn)()
	payload := p.payload()
	if _, err := conn.Write(payload); err != nil {
		return Answer{}, err
	}
	buf := make([]byte, 1<<16)
	n, err := conn.Read(buf)
	if err != nil {
		return Answer{}, err
	}
	line, echo, _ := bytes.Cut(buf[:n], []byte("\n"))
	a, err := parseGreeting(string(line))
	if err != nil {
		return a, err
	}
	return a, sameBytes(payload, echo)
}

// dialFrom connects a socket, from where the probe wants it.
func (h *Host) dialFrom(ctx context.Context, p Probe, local func(netip.AddrPort) net.Addr) (net.Conn, error) {
	var d net.Dialer
	if p.From.Addr().IsValid() || p.From.Port() != 0 {
		from := p.From
		if !from.Addr().IsValid() {
			from = netip.AddrPortFrom(unspecified(p.To.Addr().Is6()), from.Port())
		}
		d.LocalAddr = local(from)
	}
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = d.DialContext(ctx, p.Network, p.To.String())
		return err
	})
	return conn, err
}

// obey makes reads and writes of conn end with the context. The function it returns ends that.
func obey(ctx context.Context, conn net.Conn) (stop func() bool) {
	if t, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(t)
	}
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}

// payload is Size bytes that no one else would send, and not all the same.
func (p Probe) payload() []byte {
	b := []byte("netlab probe ")
	for i := len(b); i < p.Size; i++ {
		b = append(b, byte(i%251))
	}
	return b
}

func sameBytes(sent, back []byte) error {
	if !bytes.Equal(sent, back) {
		return fmt.Errorf("sent %d bytes, and other ones (%d) came back", len(sent), len(back))
	}
	return nil
}
