// SPDX-License-Identifier: Apache-2.0

// Package filterreset hides reconnections from a sink: the resend that follows one is turned into its difference to
// what the sink was sent before.
//
// It remembers a hash for each value, some 100 bytes with its path, and no value. Its memory is what the sink was
// *sent*, not what was synced, so a change set that broke off in the middle is made good by the next one too.
package filterreset

import (
	"cmp"
	"errors"
	"hash/maphash"
	"slices"
	"strings"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/ops"
	"sigs.k8s.io/kpng/client/localsink"
)

// Sink goes before another sink, which never sees a Reset, nor a value set again to what it is, nor the deletion of
// one that it was never sent.
type Sink struct {
	sink localsink.Sink
	log  ops.Log

	seed      maphash.Seed
	memory    map[ref]memory
	resend    uint64 // counts the full resends
	resending bool
}

// ref is a localv1.Ref as a key.
type ref struct {
	set  localv1.Set
	path string
}

type memory struct {
	hash   uint64
	resend uint64 // during which it was last set
}

var (
	_ localsink.Sink  = &Sink{}
	_ localsink.Asker = &Sink{}
)

// New returns a Sink before another one.
func New(sink localsink.Sink) *Sink {
	return &Sink{sink: sink, seed: maphash.MakeSeed(), memory: map[ref]memory{}}
}

// Setup implements localsink.Sink.
func (s *Sink) Setup() { s.sink.Setup() }

// WaitRequest implements localsink.Sink.
func (s *Sink) WaitRequest() (nodeName string, err error) { return s.sink.WaitRequest() }

// Ask implements localsink.Asker for the sink behind.
func (s *Sink) Ask(req *localv1.WatchReq) { localsink.Ask(s.sink, req) }

// Reset implements localsink.Sink. The sink behind is not told.
func (s *Sink) Reset() {
	s.resend++
	s.resending = true
}

// Send implements localsink.Sink. Errors of the sink behind are returned; a value whose Set failed is sent again with
// the next resend.
func (s *Sink) Send(op *localv1.OpItem) error {
	return ops.Each(op, &s.log, func(op *localv1.OpItem) error {
		return ops.Dispatch(op, handler{s, op}, &s.log)
	})
}

// handler handles one op, which is passed on as it came.
type handler struct {
	*Sink
	op *localv1.OpItem
}

func (h handler) Set(r *localv1.Ref, raw []byte) error {
	if err := check(r); err != nil {
		return err
	}
	key := ref{r.Set, r.Path}
	hash := maphash.Bytes(h.seed, raw)
	if m, ok := h.memory[key]; ok && m.hash == hash {
		if m.resend != h.resend {
			h.memory[key] = memory{hash, h.resend}
		}
		return nil
	}
	if err := h.sink.Send(h.op); err != nil {
		// What the sink made of it is not known: it must neither be taken for unchanged, nor be forgotten to delete.
		h.memory[key] = memory{^hash, h.resend}
		return err
	}
	h.memory[key] = memory{hash, h.resend}
	return nil
}

func (h handler) Delete(r *localv1.Ref) error {
	if err := check(r); err != nil {
		return err
	}
	key := ref{r.Set, r.Path}
	if _, ok := h.memory[key]; !ok {
		return nil
	}
	return h.delete(key, h.op)
}

func (h handler) Sync() error {
	var err error
	if h.resending {
		h.resending = false
		if err = h.deleteStale(); errors.Is(err, localsink.ErrStop) {
			return err
		}
	}
	return errors.Join(err, h.sink.Send(h.op))
}

// delete forgets a value and tells the sink, which has had its chance then.
func (s *Sink) delete(key ref, op *localv1.OpItem) error {
	delete(s.memory, key)
	return s.sink.Send(op)
}

// deleteStale deletes what the resend has not set: endpoints before services, so that the sink never holds an
// endpoint without its service, and otherwise by path. One failure does not keep the others.
func (s *Sink) deleteStale() error {
	var stale []ref
	for key, m := range s.memory {
		if m.resend != s.resend {
			stale = append(stale, key)
		}
	}
	slices.SortFunc(stale, func(a, b ref) int {
		return cmp.Or(cmp.Compare(rank(a.set), rank(b.set)), strings.Compare(a.path, b.path))
	})
	var failures []error
	for _, key := range stale {
		op := &localv1.OpItem{Op: &localv1.OpItem_Delete{Delete: &localv1.Ref{Set: key.set, Path: key.path}}}
		if err := s.delete(key, op); err != nil {
			failures = append(failures, err)
			if errors.Is(err, localsink.ErrStop) {
				break
			}
		}
	}
	return errors.Join(failures...)
}

// rank orders deletions.
func rank(set localv1.Set) int {
	switch set {
	case localv1.Set_EndpointsSet, localv1.Set_GlobalEndpointInfos:
		return 0
	case localv1.Set_ServicesSet, localv1.Set_GlobalServiceInfos:
		return 1
	default:
		return 2
	}
}

// check refuses what no sink could make sense of.
func check(r *localv1.Ref) (err error) {
	switch r.Set {
	case localv1.Set_ServicesSet:
		_, _, err = ops.ServicePath(r.Path)
	case localv1.Set_EndpointsSet:
		_, _, err = ops.EndpointPath(r.Path)
	case localv1.Set_GlobalServiceInfos, localv1.Set_GlobalEndpointInfos, localv1.Set_GlobalNodeInfos:
		if r.Path == "" {
			err = ops.Skip("an empty path in set %v", r.Set)
		}
	default:
		err = ops.UnknownSet(r)
	}
	return err
}
