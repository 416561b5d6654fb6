// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/filterreset"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	"sigs.k8s.io/kpng/client/tlsflags"
	. "sigs.k8s.io/kpng/internal/localtest"
)

const (
	deadline = 20 * time.Second
	tick     = 5 * time.Millisecond
)

// calls is what a callback was given, a line a call. It may be read while the client runs.
type calls struct {
	mu    sync.Mutex
	lines []string
}

func (c *calls) add(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, line)
}

func (c *calls) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.lines...)
}

// wait waits until the last call is as wanted.
func (c *calls) wait(t *testing.T, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		all := c.all()
		return len(all) > 0 && all[len(all)-1] == want
	}, deadline, tick, "want %q, got %q", want, c.all())
}

// text renders items: "ns/a=1.0.0.1,1.0.0.2 ns/b=".
func text(items []*client.ServiceEndpoints) string {
	all := make([]string, 0, len(items))
	for _, item := range items {
		ips := make([]string, 0, len(item.Endpoints))
		for _, ep := range item.Endpoints {
			ips = append(ips, ep.IPs.All()...)
		}
		all = append(all, item.Service.NamespacedName()+"="+strings.Join(ips, ","))
	}
	return strings.Join(all, " ")
}

// start runs a full-state backend as a Next loop, until the test ends.
func start(t *testing.T, c *client.LocalClient) *calls {
	t.Helper()
	got := &calls{}
	sink := fullstate.New(&localsink.Config{NodeName: "node1"})
	sink.Callback = client.ArrayBackend(func(items []*client.ServiceEndpoints) { got.add(text(items)) })
	c.Sink = sink
	if c.ErrorDelay == 0 {
		c.ErrorDelay = 10 * time.Millisecond
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !c.Next() {
		}
	}()
	t.Cleanup(func() {
		c.Cancel()
		select {
		case <-done:
		case <-time.After(deadline):
			t.Error("the client does not end")
		}
	})
	return got
}

func set(path string, ips ...string) func(State) {
	return func(s State) {
		s.SetService(Service(path, "10.0.0.1", 80))
		for i, ip := range ips {
			s.SetEndpoint(path, fmt.Sprint(i), Endpoint(ip))
		}
	}
}

func TestFollow(t *testing.T) {
	for name, options := range map[string][]Option{
		"with batches":          nil,
		"a server without them": {Old()},
		"unix socket":           {Unix(filepath.Join(t.TempDir(), "api.sock"))},
	} {
		t.Run(name, func(t *testing.T) {
			server := Start(t, options...)
			server.Update(set("ns/a", "1.0.0.1", "1::1"))
			got := start(t, &client.LocalClient{Target: server.Target()})
			got.wait(t, "ns/a=1.0.0.1,1::1")
			server.Update(set("ns/b"))
			got.wait(t, "ns/a=1.0.0.1,1::1 ns/b=")
			server.Update(func(s State) { s.Delete("ns/a") })
			got.wait(t, "ns/b=")
			require.Equal(t, []string{"ns/a=1.0.0.1,1::1", "ns/a=1.0.0.1,1::1 ns/b=", "ns/b="}, got.all())

			request := server.Requests()[0]
			require.Equal(t, "node1", request.NodeName)
			require.True(t, request.AcceptBatch)
		})
	}
}

func TestTargets(t *testing.T) {
	server := Start(t)
	server.Update(set("ns/a"))
	for _, target := range []string{server.Target(), "dns:///" + server.Target(), "tcp://" + server.Target(), "passthrough:///" + server.Target()} {
		t.Run(target, func(t *testing.T) {
			start(t, &client.LocalClient{Target: target}).wait(t, "ns/a=")
		})
	}
}

func TestServerStartsLate(t *testing.T) {
	server := Start(t)
	server.Update(set("ns/a"))
	server.Stop()
	got := start(t, &client.LocalClient{Target: server.Target()})
	time.Sleep(100 * time.Millisecond)
	require.Empty(t, got.all())
	server.Listen()
	got.wait(t, "ns/a=")
}

// A backend does not see that its server was restarted.
func TestRestartIsNoFlap(t *testing.T) {
	server := Start(t)
	server.Update(set("ns/a", "1.0.0.1"))
	server.Update(set("ns/b"))
	got := start(t, &client.LocalClient{Target: server.Target()})
	got.wait(t, "ns/a=1.0.0.1 ns/b=")

	restart := func() {
		streams := server.Streams()
		server.Stop()
		server.Listen()
		require.Eventually(t, func() bool { return server.Streams() > streams }, deadline, tick)
	}
	restart()
	restart()
	server.Update(set("ns/c"))
	got.wait(t, "ns/a=1.0.0.1 ns/b= ns/c=")
	require.Len(t, got.all(), 2, "the restarts were seen: %q", got.all())

	server.Stop()
	server.Update(func(s State) { s.Delete("ns/b"); s.Delete("ns/a/0") })
	server.Listen()
	got.wait(t, "ns/a= ns/c=")
	require.Len(t, got.all(), 3, "a state in between was seen: %q", got.all())
}

func send(ops ...*localv1.OpItem) func(Stream) error {
	return func(stream Stream) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		for _, op := range ops {
			if err := stream.Send(op); err != nil {
				return err
			}
		}
		return nil
	}
}

// Whatever is cut off or garbled, the callback is given whole states only.
func TestBadStreams(t *testing.T) {
	a, a1 := SetService(Service("ns/a", "10.0.0.1", 80)), SetEndpoint("ns/a", "0", Endpoint("1.0.0.1"))
	full := []*localv1.OpItem{Reset(), a, a1, SetService(Service("ns/b", "10.0.0.1", 80)), Sync()}
	for name, bad := range map[string]func(Stream) error{
		"no answer":            send(),
		"an error":             func(Stream) error { return status.Error(codes.ResourceExhausted, "too many watchers") },
		"ends after Reset":     send(Reset()),
		"half a set":           send(Reset(), a),
		"half a set, in batch": send(Batch(Reset(), a)),
		"half of the next set": send(append(append([]*localv1.OpItem{}, full...), Delete("ns/a/0"), Delete("ns/b"), SetService(Service("ns/x", "1.1.1.1", 1)))...),
		"garbage":              send(append(append([]*localv1.OpItem{Reset()}, nonNil(Garbage())...), full...)...),
		"a batch within":       send(Batch(append(full[:4:4], Batch(SetService(Service("ns/x", "1.1.1.1", 1))), Sync())...)),
		"too large":            send(Reset(), Set("ns/x", make([]byte, 1<<20))),
		"ops after the Sync":   send(Batch(append(append([]*localv1.OpItem{}, full...), Delete("ns/b"))...)),
	} {
		t.Run(name, func(t *testing.T) {
			server := Start(t)
			server.Script(bad, bad)
			server.Update(set("ns/a", "1.0.0.1"))
			server.Update(set("ns/b"))
			got := start(t, &client.LocalClient{Target: server.Target(), MaxMsgSize: 512 << 10})
			got.wait(t, "ns/a=1.0.0.1 ns/b=")
			require.Eventually(t, func() bool { return server.Streams() == 3 && len(server.Requests()) > 0 }, deadline, tick)
			server.Update(set("ns/c"))
			got.wait(t, "ns/a=1.0.0.1 ns/b= ns/c=")
			require.Len(t, got.all(), 2, "%q", got.all())
		})
	}
}

func nonNil(ops []*localv1.OpItem) (out []*localv1.OpItem) {
	for _, op := range ops {
		if op == nil {
			continue
		}
		switch v := op.Op.(type) { // what cannot even be marshalled is left out
		case *localv1.OpItem_Set:
			if v.Set == nil {
				continue
			}
		case *localv1.OpItem_Delete:
			if v.Delete == nil {
				continue
			}
		case *localv1.OpItem_Batch:
			if v.Batch == nil {
				continue
			}
		}
		out = append(out, op)
	}
	return out
}

// gate is a sink that is ready when the test says so.
type gate struct {
	localsink.Config
	ready  chan error
	asked  chan struct{}
	resets int
	ops    int
	fail   error
}

func (g *gate) Setup() {}
func (g *gate) Reset() { g.resets++ }

func (g *gate) WaitRequest() (string, error) {
	g.asked <- struct{}{}
	return "n", <-g.ready
}

func (g *gate) Send(*localv1.OpItem) error {
	g.ops++
	return g.fail
}

// The sink is asked once for a change set, however often the stream breaks meanwhile.
func TestSinkIsAskedOnceForASet(t *testing.T) {
	server := Start(t)
	server.Script(send(), send(Reset()), send(Reset(), SetService(Service("ns/a", "1.1.1.1", 1))))
	g := &gate{ready: make(chan error, 10), asked: make(chan struct{}, 10)}
	c := &client.LocalClient{Target: server.Target(), ErrorDelay: time.Millisecond, Sink: g}
	defer c.Cancel()
	g.ready <- nil
	require.False(t, c.Next())
	require.Len(t, g.asked, 1)
	require.Equal(t, 4, g.resets)

	g.ready <- errors.New("enough")
	require.True(t, c.Next(), "an error of the sink ends the client")
}

// asking is a gate that asks for more.
type asking struct{ *gate }

func (asking) Ask(req *localv1.WatchReq) { req.AllEndpoints = true }

func TestSinkAsksForMore(t *testing.T) {
	for _, asks := range []bool{true, false} {
		server := Start(t)
		g := &gate{ready: make(chan error, 1), asked: make(chan struct{}, 1)}
		var sink localsink.Sink = g
		if asks {
			sink = filterreset.New(asking{g}) // through a sink that goes before it
		}
		c := &client.LocalClient{Target: server.Target(), Sink: sink}
		g.ready <- nil
		require.False(t, c.Next())
		c.Cancel()
		want := []*localv1.WatchReq{{NodeName: "n", AcceptBatch: true, AllEndpoints: asks}}
		require.Empty(t, cmp.Diff(want, server.Requests(), protocmp.Transform()))
	}
}

func TestSinkErrors(t *testing.T) {
	server := Start(t)
	g := &gate{ready: make(chan error, 10), asked: make(chan struct{}, 10), fail: errors.New("no")}
	c := &client.LocalClient{Target: server.Target(), Sink: g}
	defer c.Cancel()
	g.ready <- nil
	require.False(t, c.Next(), "an error of one op does not end the client")
	require.Equal(t, 2, g.ops)

	g.fail = fmt.Errorf("so: %w", localsink.ErrStop)
	g.ready <- nil
	server.Update(set("ns/a"))
	require.True(t, c.Next())
}

func TestCancel(t *testing.T) {
	t.Run("before use", func(t *testing.T) {
		c := &client.LocalClient{Sink: fullstate.New(nil)}
		require.NoError(t, c.Context().Err())
		c.Cancel()
		require.ErrorIs(t, c.Context().Err(), context.Canceled)
		require.True(t, c.Next())
		_, err := c.Dial()
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("while waiting for a change", func(t *testing.T) {
		server := Start(t)
		c := &client.LocalClient{Target: server.Target()}
		start(t, c).wait(t, "")
	})
	t.Run("while backing off", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listener.Close()
		start(t, &client.LocalClient{Target: listener.Addr().String(), ErrorDelay: time.Hour})
		time.Sleep(50 * time.Millisecond)
	})
	t.Run("while the server is mute", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog, says nothing
		require.NoError(t, err)
		defer listener.Close()
		start(t, &client.LocalClient{Target: listener.Addr().String()})
		time.Sleep(50 * time.Millisecond)
	})
}

func TestCancelOnSignal(t *testing.T) {
	c := &client.LocalClient{Sink: fullstate.New(nil), ErrorDelay: time.Millisecond, Target: "127.0.0.1:1"}
	c.CancelOn(syscall.SIGUSR1)
	c.CancelOnSignals()
	time.AfterFunc(20*time.Millisecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGUSR1) })
	require.True(t, c.Next())
}

func TestDialContext(t *testing.T) {
	server := Start(t)
	c := client.New(flag.NewFlagSet("", flag.ContinueOnError))
	c.Target = server.Target()
	conn, err := c.DialContext(context.Background())
	require.NoError(t, err)
	defer conn.Close()
	stream, err := localv1.NewSetsClient(conn).Watch(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&localv1.WatchReq{}))
	op, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, op.GetReset_())

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.DialContext(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestFlags(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c := client.New(fs)
	require.Equal(t, "127.0.0.1:12090", c.Target)
	require.Equal(t, time.Second, c.ErrorDelay)
	require.Equal(t, 4<<20, c.MaxMsgSize)
	require.NoError(t, fs.Parse([]string{
		"--api=unix:///x", "--error-delay=3s", "--max-msg-size=7",
		"--tls-key=k", "--tls-crt=c", "--tls-ca=a",
	}))
	require.Equal(t, []any{"unix:///x", 3 * time.Second, 7, tlsflags.Flags{KeyFile: "k", CertFile: "c", CAFile: "a"}}, []any{c.Target, c.ErrorDelay, c.MaxMsgSize, *c.TLS})
}

func TestTLS(t *testing.T) {
	ca := NewCA(t)
	server := Start(t, TLS(ca.ServerConfig()))
	server.Update(set("ns/a"))
	dir := t.TempDir()
	key, crt, caFile := ca.Write(dir, "client")

	t.Run("accepted", func(t *testing.T) {
		start(t, &client.LocalClient{Target: server.Target(), TLS: &tlsflags.Flags{KeyFile: key, CertFile: crt, CAFile: caFile}}).wait(t, "ns/a=")
	})
	other := t.TempDir()
	otherKey, otherCrt, otherCA := NewCA(t).Write(other, "stranger")
	for name, files := range map[string]*tlsflags.Flags{
		"plain text":            nil,
		"no certificate":        {CAFile: caFile},
		"a strange certificate": {KeyFile: otherKey, CertFile: otherCrt, CAFile: caFile},
		"a strange CA":          {KeyFile: key, CertFile: crt, CAFile: otherCA},
	} {
		t.Run("refused: "+name, func(t *testing.T) {
			got := start(t, &client.LocalClient{Target: server.Target(), TLS: files})
			time.Sleep(200 * time.Millisecond)
			require.Empty(t, got.all())
		})
	}
	t.Run("a file that cannot be read", func(t *testing.T) {
		c := &client.LocalClient{TLS: &tlsflags.Flags{CAFile: filepath.Join(dir, "none")}}
		_, err := c.Dial()
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("rotated", func(t *testing.T) {
		files := &tlsflags.Flags{KeyFile: otherKey, CertFile: otherCrt, CAFile: otherCA}
		got := start(t, &client.LocalClient{Target: server.Target(), TLS: files})
		time.Sleep(50 * time.Millisecond)
		require.Empty(t, got.all())
		ca.Write(other, "welcome") // in the same files
		got.wait(t, "ns/a=")
	})
}

// A server with gRPC's default limits does not get pinged to death while it waits: the connection object is kept, and
// with it what gRPC learns. (That it learns is gRPC's own test; it takes minutes.)
func TestConnectionIsKeptForTheNextStream(t *testing.T) {
	server := Start(t)
	var peers sync.Map
	server.Script(func(s Stream) error { return countPeer(&peers, s) }, func(s Stream) error { return countPeer(&peers, s) })
	server.Update(set("ns/a"))
	start(t, &client.LocalClient{Target: server.Target()}).wait(t, "ns/a=")
	n := 0
	peers.Range(func(any, any) bool { n++; return true })
	require.Equal(t, 1, n)
}

func countPeer(peers *sync.Map, s Stream) error {
	if p, ok := peerOf(s.Context()); ok {
		peers.Store(p, true)
	}
	return status.Error(codes.Unavailable, "again")
}
