// SPDX-License-Identifier: Apache-2.0

// Package changes is the sink for backends that want to be told what changed: each service that differs from what
// they were told before, whole. The cost of a change follows from the change, at any number of services, and an
// endpoint held takes some 160 bytes.
package changes

import (
	"strings"
	"time"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/ops"
	"sigs.k8s.io/kpng/client/internal/state"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// Op says what happened to a service.
type Op string

// The ops.
const (
	// Set: the service is new, or it or its endpoints differ.
	Set Op = "set"
	// Delete: the service is gone.
	Delete Op = "delete"
)

// Change is about one service.
type Change struct {
	Op Op
	// Item is the service with all its endpoints, by key, as they are now. After a Delete it is a service with
	// nothing but its namespace and name.
	Item *fullstate.ServiceEndpoints
	// TriggeredAt is when the first cause of the change happened in the cluster (a pod became ready), by the clock there.
	// Zero when that is not known: without Sink.TriggerTimes, with a server that does not tell, for a Delete, in the first
	// call, and after a reconnection.
	TriggeredAt time.Time
}

// Callback is given what changed since it was called before, ordered by namespace/name, one Change for a service.
//
// It is called first with the first whole state, also when that is empty, so that a backend can clear what an earlier
// life left behind; later whenever there is a change. A reconnection is nothing special: whatever was missed
// meanwhile comes as one difference, and nothing comes when nothing was.
//
// The changes belong to the callback. An error is handled as one of localsink.Sink.Send: localsink.ErrStop ends the
// client, another one is logged. The changes count as told in any case.
type Callback func(changes []Change) error

// Sink calls back with what changed.
type Sink struct {
	Config    *localsink.Config
	Callback  Callback
	SetupFunc fullstate.Setup

	// AllEndpoints asks for localv1.WatchReq.AllEndpoints: a backend that sets it looks at the scopes of an endpoint
	// before it uses it. A server that does not know of it sends what it sends to all.
	AllEndpoints bool
	// TriggerTimes asks for localv1.WatchReq.TriggerTimes, for Change.TriggeredAt.
	TriggerTimes bool

	state    *state.State
	triggers triggers
	called   bool
	log      ops.Log
}

var (
	_ localsink.Sink  = &Sink{}
	_ localsink.Asker = &Sink{}
)

// New returns a sink.
func New(config *localsink.Config, callback Callback) *Sink {
	return &Sink{Config: config, Callback: callback}
}

// Setup implements localsink.Sink.
func (s *Sink) Setup() {
	if s.SetupFunc != nil {
		s.SetupFunc()
	}
}

// WaitRequest implements localsink.Sink.
func (s *Sink) WaitRequest() (nodeName string, err error) { return s.Config.WaitRequest() }

// Ask implements localsink.Asker.
func (s *Sink) Ask(req *localv1.WatchReq) {
	req.AllEndpoints, req.TriggerTimes = s.AllEndpoints, s.TriggerTimes
}

// Reset implements localsink.Sink.
func (s *Sink) Reset() {
	s.held().Reset()
	s.triggers.take() // of a change set that broke off
}

// Send implements localsink.Sink.
func (s *Sink) Send(op *localv1.OpItem) error {
	return ops.Each(op, &s.log, func(op *localv1.OpItem) error {
		s.triggers.note(op)
		return ops.Dispatch(op, handler{s.held(), s}, &s.log)
	})
}

func (s *Sink) held() *state.State {
	if s.state == nil {
		s.state = state.New(state.Bytes)
	}
	return s.state
}

// handler is the state, and the sink's Reset and Sync.
type handler struct {
	*state.State
	sink *Sink
}

func (h handler) Reset() { h.sink.Reset() }

func (h handler) Sync() error {
	changed, _ := h.Commit()
	triggers := h.sink.triggers.take()
	if len(changed) == 0 && h.sink.called {
		return nil
	}
	h.sink.called = true
	if h.sink.Callback == nil {
		return nil
	}
	changes := make([]Change, len(changed))
	for i, c := range changed {
		changes[i] = newChange(c, triggers[c.Path])
	}
	return h.sink.Callback(changes)
}

func newChange(c state.Change, triggeredAt time.Time) Change {
	if c.Record == nil {
		namespace, name, _ := strings.Cut(c.Path, "/")
		return Change{Op: Delete, Item: &fullstate.ServiceEndpoints{Service: &localv1.Service{Namespace: namespace, Name: name}}}
	}
	item := &fullstate.ServiceEndpoints{Service: c.Record.Service()}
	if n := c.Record.EndpointCount(); n > 0 {
		item.Endpoints = c.Record.AppendEndpoints(make([]*localv1.Endpoint, 0, n))
	}
	return Change{Op: Set, Item: item, TriggeredAt: triggeredAt}
}
