// SPDX-License-Identifier: Apache-2.0

// Package fullstate is the sink for backends that want to be told everything at every change.
//
// That is the simplest contract there is, and its cost follows the size of the state, not of the change: see
// client/localsink/changes for backends that serve many services.
package fullstate

import (
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/ops"
	"sigs.k8s.io/kpng/client/internal/state"
	"sigs.k8s.io/kpng/client/localsink"
)

// ServiceEndpoints is a service and those of its endpoints that the node may use.
type ServiceEndpoints struct {
	Service   *localv1.Service
	Endpoints []*localv1.Endpoint
}

// Callback is given all services of a state, ordered by namespace/name, the endpoints of each by their keys. The
// channel is closed after the last one; it need not be read to its end.
//
// The messages are shared with the sink and later calls: they must not be changed. The ServiceEndpoints and their
// slices belong to the callback.
type Callback func(item <-chan *ServiceEndpoints)

// Setup is called once, before any callback.
type Setup func()

// Sink calls back with the whole state, at each Sync.
//
// A state is whole or not shown: what a broken connection brought of a change set is never seen. After a Reset, the
// state before it stays until the next Sync; that one does not call back when it brought nothing new. The first Sync
// always calls back, also when there is nothing at all, so that a backend can clear what an earlier life left behind.
type Sink struct {
	Config    *localsink.Config
	Callback  Callback
	SetupFunc Setup

	state  *state.State
	called bool
	log    ops.Log
}

var _ localsink.Sink = &Sink{}

// New returns a sink. Its Callback is to be set before it is used.
func New(config *localsink.Config) *Sink {
	return &Sink{Config: config}
}

// ArrayCallback wraps a callback that takes all items at once. The slice belongs to the callback.
func ArrayCallback(callback func([]*ServiceEndpoints)) Callback {
	return func(ch <-chan *ServiceEndpoints) {
		items := make([]*ServiceEndpoints, 0, len(ch))
		for item := range ch {
			items = append(items, item)
		}
		callback(items)
	}
}

// Setup implements localsink.Sink.
func (s *Sink) Setup() {
	if s.SetupFunc != nil {
		s.SetupFunc()
	}
}

// WaitRequest implements localsink.Sink.
func (s *Sink) WaitRequest() (nodeName string, err error) { return s.Config.WaitRequest() }

// Reset implements localsink.Sink.
func (s *Sink) Reset() { s.held().Reset() }

// Send implements localsink.Sink.
func (s *Sink) Send(op *localv1.OpItem) error {
	return ops.Dispatch(op, handler{s.held(), s}, &s.log)
}

func (s *Sink) held() *state.State {
	if s.state == nil {
		s.state = state.New(state.Messages)
	}
	return s.state
}

// handler is the state, and the sink's Sync.
type handler struct {
	*state.State
	sink *Sink
}

func (h handler) Sync() error {
	changes, resent := h.Commit()
	if resent && len(changes) == 0 && h.sink.called {
		return nil
	}
	h.sink.called = true
	if h.sink.Callback != nil {
		h.sink.Callback(items(h.State))
	}
	return nil
}

// items returns a closed channel of all items. Nobody has to feed it, so nobody waits when it is not read. Whatever
// the number of services, few things are allocated.
func items(s *state.State) <-chan *ServiceEndpoints {
	records := s.Records()
	endpoints := 0
	for _, r := range records {
		endpoints += r.EndpointCount()
	}
	ch := make(chan *ServiceEndpoints, len(records))
	items := make([]ServiceEndpoints, len(records))
	all := make([]*localv1.Endpoint, 0, endpoints)
	for i, r := range records {
		if !r.Known() {
			continue // a server that keeps the order of the protocol sends no endpoint without its service
		}
		items[i].Service = r.Service()
		if start := len(all); r.EndpointCount() > 0 {
			all = r.AppendEndpoints(all)
			items[i].Endpoints = all[start:len(all):len(all)]
		}
		ch <- &items[i]
	}
	close(ch)
	return ch
}
