// SPDX-License-Identifier: Apache-2.0

//go:build linux

package proxytest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

// Load is traffic that goes on while rules are replaced: one TCP connection that is never at rest, and new questions over TCP
// and UDP, one after the other.
type Load struct {
	t     *testing.T
	conn  net.Conn
	stop  chan struct{}
	wg    sync.WaitGroup
	asked atomic.Int64

	mu   sync.Mutex
	sent uint64
	back uint64
	errs []error
}

const (
	record      = 64
	recordPause = time.Millisecond
)

// StartLoad begins with all of it, from a host to an address that pods serve.
func StartLoad(t *testing.T, from *netlab.Host, to netip.AddrPort) *Load {
	t.Helper()
	conn, err := from.Dial(t.Context(), "tcp", to.String())
	require.NoError(t, err)
	l := &Load{t: t, conn: conn, stop: make(chan struct{})}
	answers := bufio.NewReader(conn)
	_, err = answers.ReadString('\n')
	require.NoError(t, err)
	l.wg.Go(l.send)
	l.wg.Go(func() { l.receive(answers) })
	for _, network := range []string{"tcp", "udp"} {
		l.wg.Go(func() { l.ask(from, netlab.Probe{Network: network, To: to, Size: 100}) })
	}
	return l
}

func (l *Load) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

func (l *Load) send() {
	tick := time.NewTicker(recordPause)
	defer tick.Stop()
	buf := make([]byte, record)
	for {
		select {
		case <-l.stop:
			_ = l.conn.(*net.TCPConn).CloseWrite() // the pod ends after it has sent all back
			return
		case <-tick.C:
		}
		binary.BigEndian.PutUint64(buf, l.sent)
		if _, err := l.conn.Write(buf); err != nil {
			l.failed(fmt.Errorf("the connection ended: %w", err))
			return
		}
		l.sent++
	}
}

func (l *Load) receive(from io.Reader) {
	buf := make([]byte, record)
	for {
		_, err := io.ReadFull(from, buf)
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil && binary.BigEndian.Uint64(buf) != l.back {
			err = fmt.Errorf("record %d in place of %d", binary.BigEndian.Uint64(buf), l.back)
		}
		if err != nil {
			l.failed(fmt.Errorf("the connection: %w", err))
			return
		}
		l.back++
	}
}

// ask asks a new question when the one before is answered. TCP sends its first packet again after a second, which would
// hide that it was lost: an answer is to come before.
func (l *Load) ask(from *netlab.Host, p netlab.Probe) {
	const before = 900 * time.Millisecond
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), before)
		_, err := from.Probe(ctx, p)
		cancel()
		if err != nil {
			l.failed(err)
		}
		l.asked.Add(1)
	}
}

// Run has the load go on until so many more questions were answered, or something was lost.
func (l *Load) Run(questions int64) {
	l.t.Helper()
	until := l.asked.Load() + questions
	require.Eventually(l.t, func() bool { return l.asked.Load() >= until || l.failure() != nil }, Patience, time.Millisecond)
	require.NoError(l.t, l.failure())
}

func (l *Load) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.errs...)
}

// RequireNothingLost ends the load.
func (l *Load) RequireNothingLost() {
	l.t.Helper()
	close(l.stop)
	_ = l.conn.SetDeadline(time.Now().Add(Patience))
	l.wg.Wait()
	_ = l.conn.Close()
	require.NoError(l.t, l.failure(), "of %d questions", l.asked.Load())
	require.Equal(l.t, l.sent, l.back, "what was sent over the connection comes back")
	require.NotZero(l.t, l.back)
}
