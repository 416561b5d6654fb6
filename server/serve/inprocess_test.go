// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// channelSink is a Sink that hands its ops to a watch, so that they are checked like those of a stream.
type channelSink struct {
	requests chan struct{}
	ops      chan *localv1.OpItem
	end      error
}

func (s *channelSink) Setup() {}
func (s *channelSink) Reset() {}
func (s *channelSink) WaitRequest() (string, error) {
	if _, more := <-s.requests; !more {
		return "", s.end
	}
	return "n1", nil
}
func (s *channelSink) Send(op *localv1.OpItem) error { s.ops <- op; return nil }

func newChannelSink() (*channelSink, *watch) {
	s := &channelSink{requests: make(chan struct{}), ops: make(chan *localv1.OpItem), end: errors.New("the sink is done")}
	return s, &watch{
		request: func() error { s.requests <- struct{}{}; return nil },
		recv:    func() (*localv1.OpItem, error) { return <-s.ops, nil },
		state:   map[string]proto.Message{},
	}
}

func TestInProcess(t *testing.T) {
	st := store.New()
	sink, w := newChannelSink()
	done := make(chan error, 1)
	go func() { done <- InProcess(t.Context(), st, sink, false) }()

	st.Update(func(tx *store.Tx) {
		tx.SetService(service("a"))
		tx.SetSlice(slice("a", "s", "10.0.0.1@n1"))
		tx.SetSynced()
	})
	require.NoError(t, w.next())
	require.Equal(t, []string{"reset", "set ServicesSet ns/a", "set EndpointsSet ns/a/10.0.0.1"}, short(w.ops))
	for _, value := range w.state {
		if ep, ok := value.(*localv1.Endpoint); ok {
			require.True(t, ep.Local)
		}
	}
	st.Update(func(tx *store.Tx) { tx.DeleteService("ns", "a") })
	require.NoError(t, w.next())
	require.Equal(t, []string{"delete EndpointsSet ns/a/10.0.0.1", "delete ServicesSet ns/a"}, short(w.ops))

	close(sink.requests)
	require.ErrorIs(t, <-done, sink.end)
}

// asking is a Sink that asks for all endpoints.
type asking struct{ *channelSink }

func (asking) Ask(req *localv1.WatchReq) { req.AllEndpoints = true }

func TestInProcessAsks(t *testing.T) {
	st := store.New()
	terminating := slice("a", "s", "10.0.0.1@n1", "10.0.0.2@n2!")
	terminating.Endpoints[1].Conditions = &globalv1.EndpointConditions{Serving: true, Terminating: true}
	st.Update(func(tx *store.Tx) { tx.SetService(service("a")); tx.SetSlice(terminating); tx.SetSynced() })
	for _, tt := range []struct {
		asks      bool
		endpoints int
	}{{true, 2}, {false, 1}} {
		sink, w := newChannelSink()
		var whole Sink = sink
		if tt.asks {
			whole = asking{sink}
		}
		done := make(chan error, 1)
		go func() { done <- InProcess(t.Context(), st, whole, true) }()
		require.NoError(t, w.next())
		require.NoError(t, <-done)
		require.Len(t, w.state, 1+tt.endpoints)
	}
}

func TestInProcessEnds(t *testing.T) {
	t.Run("once", func(t *testing.T) {
		st := store.New()
		st.Update(func(tx *store.Tx) { tx.SetSynced() })
		sink, w := newChannelSink()
		done := make(chan error, 1)
		go func() { done <- InProcess(t.Context(), st, sink, true) }()
		require.NoError(t, w.next())
		require.NoError(t, <-done)
	})
	t.Run("with its context, while it waits for a change", func(t *testing.T) {
		st := store.New()
		st.Update(func(tx *store.Tx) { tx.SetSynced() })
		sink, w := newChannelSink()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- InProcess(ctx, st, sink, false) }()
		require.NoError(t, w.next())
		require.NoError(t, w.request())
		cancel()
		require.NoError(t, <-done)
	})
}
