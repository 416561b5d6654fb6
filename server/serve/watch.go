// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// localService is localv1.Sets.
type localService struct {
	localv1.UnimplementedSetsServer
	*watchers
}

// Watch streams one change set for each request.
func (s localService) Watch(stream localv1.Sets_WatchServer) error {
	w, err := s.add(stream.Context(), "local")
	if err != nil {
		return err
	}
	defer s.remove(w)

	var state localState
	for first := true; ; first = false {
		req, err := stream.Recv()
		if err != nil {
			return endOfStream(err)
		}
		w.asked(req.GetNodeName())
		next := func(to *store.Snapshot, out opWriter) (*store.Diff, int) {
			return state.advance(to, req, out)
		}
		if err := s.serve(stream.Context(), w, newFrameWriter(stream, req.GetAcceptBatch()), first, next); err != nil {
			return err
		}
		w.sent(state.snapshot)
	}
}

// globalService is globalv1.Sets.
type globalService struct {
	globalv1.UnimplementedSetsServer
	*watchers
}

// Watch streams one change set for each request.
func (s globalService) Watch(stream globalv1.Sets_WatchServer) error {
	w, err := s.add(stream.Context(), "global")
	if err != nil {
		return err
	}
	defer s.remove(w)

	state := globalState{paths: globalPaths{bars: retiredPeer(stream.Context())}}
	for first := true; ; first = false {
		req, err := stream.Recv()
		if err != nil {
			return endOfStream(err)
		}
		next := func(to *store.Snapshot, out opWriter) (*store.Diff, int) {
			return state.advance(to, req, out)
		}
		if err := s.serve(stream.Context(), w, newFrameWriter(stream, req.GetAcceptBatch()), first, next); err != nil {
			return err
		}
		w.sent(state.snapshot)
	}
}

// endOfStream turns the error of a stream's Recv into that of its handler: a client that is done is no failure.
func endOfStream(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// watchers is all that the two services share: the store, and who watches it.
type watchers struct {
	store   *store.Store
	max     int
	metrics *metrics

	mu    sync.Mutex
	all   map[*watcher]struct{}
	count uint64 // of all that there ever were
}

// watcher is one stream, for the metrics.
type watcher struct {
	id        uint64 // tells apart those of one peer: on a unix socket, peers have no address
	api, peer string

	mu       sync.Mutex
	node     string
	revision uint64 // of what was sent last
	waiting  bool   // it has asked and been told all there is
}

func (w *watcher) asked(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = node
	w.waiting = true
}

func (w *watcher) sent(snapshot *store.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision = snapshot.Revision()
	w.waiting = false
}

func (s *watchers) add(ctx context.Context, api string) (*watcher, error) {
	w := &watcher{api: api}
	if p, ok := peer.FromContext(ctx); ok {
		w.peer = p.Addr.String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= s.max {
		return nil, status.Errorf(codes.ResourceExhausted,
			"all %d places for watchers are taken; raise --max-watchers or retry later", s.max)
	}
	s.count++
	w.id = s.count
	s.all[w] = struct{}{}
	return w, nil
}

func (s *watchers) remove(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
}

// serve tells one change set and counts it.
func (s *watchers) serve(ctx context.Context, w *watcher, out *frameWriter, first bool,
	next func(*store.Snapshot, opWriter) (*store.Diff, int),
) error {
	event, err := changeSet(ctx, s.store, out, first, next)
	s.metrics.sent(w.api, *out.count)
	if err != nil {
		return err
	}
	if !event.IsZero() {
		s.metrics.latency.Observe(time.Since(event).Seconds())
	}
	return nil
}
