// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// Stream is a TCP connection under continuous load: numbered records go out, and must come back in order.
type Stream struct {
	// Host is who answers.
	Host string

	conn net.Conn
	stop chan struct{}
	wg   sync.WaitGroup

	mu         sync.Mutex
	sent, back uint64
	pause      time.Duration // the longest that nothing came back
	err        error
}

const streamRecord = 64

// OpenStream connects from a host and starts to talk.
func (l *Lab) OpenStream(ctx context.Context, t testing.TB, from string, to netip.AddrPort) *Stream {
	t.Helper()
	conn, err := l.Host(from).Dial(ctx, TCP, to.String())
	if err != nil {
		t.Fatalf("stream from %s to %s: %v", from, to, err)
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("stream from %s to %s: %v", from, to, err)
	}
	s := &Stream{conn: conn, stop: make(chan struct{})}
	s.Host, _, _ = strings.Cut(line, " ")
	s.wg.Go(s.send)
	s.wg.Go(func() { s.receive(r) })
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *Stream) send() {
	tick := time.NewTicker(500 * time.Microsecond)
	defer tick.Stop()
	buf := make([]byte, streamRecord)
	for {
		select {
		case <-s.stop:
			_ = s.conn.(*net.TCPConn).CloseWrite() // the server ends after it has sent all back
			return
		case <-tick.C:
		}
		s.mu.Lock()
		binary.BigEndian.PutUint64(buf, s.sent)
		s.sent++
		s.mu.Unlock()
		if _, err := s.conn.Write(buf); err != nil {
			s.fail(err)
			return
		}
	}
}

func (s *Stream) receive(r io.Reader) {
	buf := make([]byte, streamRecord)
	last := time.Now()
	for {
		_, err := io.ReadFull(r, buf)
		if err == io.EOF {
			return
		}
		if err != nil {
			s.fail(err)
			return
		}
		now := time.Now()
		s.mu.Lock()
		if got := binary.BigEndian.Uint64(buf); got != s.back && s.err == nil {
			s.err = fmt.Errorf("record %d came back in place of %d", got, s.back)
		}
		s.back++
		s.pause = max(s.pause, now.Sub(last))
		s.mu.Unlock()
		last = now
	}
}

func (s *Stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// Ended waits until the connection has ended by itself, and returns what the client was told; nil if it goes on.
func (s *Stream) Ended(within time.Duration) error {
	for deadline := time.Now().Add(within); ; {
		s.mu.Lock()
		err := s.err
		s.mu.Unlock()
		if err != nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// Load is what became of what was sent.
type Load struct {
	Sent, Back uint64
	// Pause is the longest that nothing came back.
	Pause time.Duration
	// Err is what ended the connection before its time.
	Err error
}

// Lost is how many records did not come back.
func (l Load) Lost() uint64 { return l.Sent - l.Back }

func (l Load) String() string {
	return fmt.Sprintf("%d sent, %d lost, longest pause %v, error %v", l.Sent, l.Lost(), l.Pause, l.Err)
}

// Close ends the connection after all that was sent has come back, which has 3 s.
func (s *Stream) Close() Load {
	select {
	case <-s.stop:
	default:
		close(s.stop)
		_ = s.conn.SetDeadline(time.Now().Add(3 * time.Second))
	}
	s.wg.Wait()
	_ = s.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return Load{Sent: s.sent, Back: s.back, Pause: s.pause, Err: s.err}
}

// Datagrams is a UDP client that keeps its source port and asks the same address every few milliseconds, as a DNS
// resolver or a SIP phone does.
type Datagrams struct {
	conn net.Conn
	stop chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	sent    int
	refused int
	counts  map[string]int
	last    string    // who answered last
	lastAt  time.Time // and when
}

// datagramPause is how long a Datagrams rests between two questions.
const datagramPause = 5 * time.Millisecond

// SendDatagrams starts asking.
func (l *Lab) SendDatagrams(t testing.TB, from string, port uint16, to netip.AddrPort) *Datagrams {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.UDPAddr{Port: int(port)}}
	s := &Datagrams{stop: make(chan struct{}), counts: map[string]int{}}
	err := l.Host(from).Do(func() (err error) {
		s.conn, err = d.Dial(UDP, to.String())
		return err
	})
	if err != nil {
		t.Fatalf("datagrams from %s port %d to %s: %v", from, port, to, err)
	}
	s.wg.Go(s.send)
	s.wg.Go(s.receive)
	t.Cleanup(s.Close)
	return s
}

func (s *Datagrams) send() {
	tick := time.NewTicker(datagramPause)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		_, err := s.conn.Write([]byte("who?"))
		s.mu.Lock()
		s.sent++
		if Refused(err) { // an ICMP error about an earlier one
			s.refused++
		}
		s.mu.Unlock()
	}
}

func (s *Datagrams) receive() {
	buf := make([]byte, 1<<10)
	for {
		n, err := s.conn.Read(buf)
		select {
		case <-s.stop:
			return
		default:
		}
		s.mu.Lock()
		switch {
		case Refused(err):
			s.refused++
		case err == nil:
			s.last, _, _ = strings.Cut(string(buf[:n]), " ")
			s.lastAt = time.Now()
			s.counts[s.last]++
		}
		s.mu.Unlock()
	}
}

// Close ends it.
func (s *Datagrams) Close() {
	select {
	case <-s.stop:
		return
	default:
	}
	close(s.stop)
	_ = s.conn.Close()
	s.wg.Wait()
}

// AnsweredBy waits until the host of this name is the one that answers: what it was asked after this call began.
func (s *Datagrams) AnsweredBy(name string, within time.Duration) error {
	return s.wait(within, func(since time.Time) bool { return s.last == name && s.lastAt.After(since) }, "answers of "+name)
}

// Silent waits until nobody has answered for a while.
func (s *Datagrams) Silent(within time.Duration) error {
	const while = 20 * datagramPause
	return s.wait(within, func(since time.Time) bool { return time.Since(since) > while && time.Since(s.lastAt) > while }, "silence")
}

func (s *Datagrams) wait(within time.Duration, done func(since time.Time) bool, what string) error {
	since := time.Now()
	for {
		s.mu.Lock()
		ok, state := done(since), fmt.Sprintf("%d sent, %d refused, last %q %v ago, %v", s.sent, s.refused, s.last, time.Since(s.lastAt), s.counts)
		s.mu.Unlock()
		if ok {
			return nil
		}
		if time.Since(since) > within {
			return fmt.Errorf("no %s within %v: %s", what, within, state)
		}
		time.Sleep(datagramPause)
	}
}
