// SPDX-License-Identifier: Apache-2.0

// Package state holds what a stream of ops has built up: services and their endpoints, on two levels, so that the
// endpoints of ns/a can never be taken for those of ns/a-b.
//
// The life of a change set:
//
//  1. Set and Delete take notes of it; what is held does not change yet.
//  2. Commit makes the notes the state and tells which services differ from before.
//  3. A set that was broken off is forgotten with Reset, which also starts a full resend: at the next Commit, what was
//     not set since then is gone, and what was set to what it was before is no difference at all.
//
// The cost of a Commit follows from what was noted, not from what is held (after a Reset, both are the same). Notes
// are compared by a hash of the bytes, so resending a value that is held does not even decode it.
package state

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/ops"
)

// Keep says in which form a State holds the values.
type Keep int

const (
	// Messages holds decoded messages: quick to hand out all of, at some 500 bytes for an endpoint (BenchmarkMemory).
	Messages Keep = iota
	// Bytes holds what came over the wire, some 160 bytes for an endpoint, and decodes a service when it is handed out.
	Bytes
)

// State is the state of one stream. It is not safe for concurrent use.
type State struct {
	keep     Keep
	seed     maphash.Seed
	services map[string]*Record
	order    []*Record // sorted by path; complete after sortRecords
	unsorted int       // the last so many of order are not in their place yet
	dead     int       // that many of order are not in services any more

	noted     map[string]*note
	last      *note // of the op before: consecutive ops are mostly about one service
	resetting bool
}

// Record is one service with its endpoints, as of the last Commit. It is held under its path also when only its
// endpoints are known.
type Record struct {
	path      string
	service   *entry   // nil: not known
	endpoints []*entry // sorted by key
	dead      bool
}

// note is what the change set has said of one service so far.
type note struct {
	path         string
	record       *Record // what was held when the note was begun; nil: nothing
	serviceNoted bool
	service      *entry // nil: deleted
	endpoints    []touch
}

// touch is a new entry for a key, nil when deleted.
type touch struct {
	key string
	*entry
}

// entry is a value. Its decoded form may come and go; the value never changes, so two states share their entries.
type entry struct {
	key  string
	hash uint64
	raw  []byte
	msg  proto.Message
}

// New returns an empty state.
func New(keep Keep) *State {
	return &State{keep: keep, seed: maphash.MakeSeed(), services: map[string]*Record{}, noted: map[string]*note{}}
}

// Reset forgets the change set under way and begins a full resend.
func (s *State) Reset() {
	clear(s.noted)
	s.last, s.resetting = nil, true
}

// Set notes a value.
func (s *State) Set(ref *localv1.Ref, raw []byte) error {
	switch ref.Set {
	case localv1.Set_ServicesSet:
		if _, _, err := ops.ServicePath(ref.Path); err != nil {
			return err
		}
		n := s.note(ref.Path)
		e, err := s.entry(n.held(), "", raw, newService)
		if err != nil {
			return ops.Skip("service %.100q: %w", ref.Path, err)
		}
		n.serviceNoted, n.service = true, e
	case localv1.Set_EndpointsSet:
		service, key, err := ops.EndpointPath(ref.Path)
		if err != nil {
			return err
		}
		n := s.note(service)
		e, err := s.entry(n.heldEndpoint(key), key, raw, newEndpoint)
		if err != nil {
			return ops.Skip("endpoint %.100q: %w", ref.Path, err)
		}
		n.endpoints = append(n.endpoints, touch{e.key, e})
	default:
		return ops.UnknownSet(ref)
	}
	return nil
}

// Delete notes that a value is gone.
func (s *State) Delete(ref *localv1.Ref) error {
	switch ref.Set {
	case localv1.Set_ServicesSet:
		if _, _, err := ops.ServicePath(ref.Path); err != nil {
			return err
		}
		n := s.note(ref.Path)
		n.serviceNoted, n.service = true, nil
	case localv1.Set_EndpointsSet:
		service, key, err := ops.EndpointPath(ref.Path)
		if err != nil {
			return err
		}
		n := s.note(service)
		n.endpoints = append(n.endpoints, touch{strings.Clone(key), nil})
	default:
		return ops.UnknownSet(ref)
	}
	return nil
}

// note returns the note about a service, begun if need be.
func (s *State) note(path string) *note {
	if s.last != nil && s.last.path == path {
		return s.last
	}
	n := s.noted[path]
	if n == nil {
		n = &note{record: s.services[path]}
		if n.record != nil {
			n.path = n.record.path
		} else {
			n.path = strings.Clone(path) // it may be a part of something longer
		}
		s.noted[n.path] = n
	}
	s.last = n
	return n
}

func (n *note) held() *entry {
	if n.record == nil {
		return nil
	}
	return n.record.service
}

func (n *note) heldEndpoint(key string) *entry {
	if n.record == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(n.record.endpoints, key, func(e *entry, key string) int { return cmp.Compare(e.key, key) })
	if !found {
		return nil
	}
	return n.record.endpoints[i]
}

// entry returns the entry for a value: the one held, when the value is the same.
func (s *State) entry(held *entry, key string, raw []byte, empty func() proto.Message) (*entry, error) {
	hash := maphash.Bytes(s.seed, raw)
	if held != nil && held.hash == hash {
		return held, nil
	}
	msg := empty()
	if err := proto.Unmarshal(raw, msg); err != nil {
		return nil, err
	}
	if held != nil {
		// A map (labels) has no order of its own on the wire, so other bytes may be the same message.
		if proto.Equal(held.message(empty), msg) {
			return held, nil
		}
		key = held.key
	} else {
		key = strings.Clone(key)
	}
	e := &entry{key: key, hash: hash, msg: msg}
	if s.keep == Bytes {
		e.raw = raw
		if raw == nil {
			e.raw = []byte{} // not nil: the value can be decoded again
		}
	}
	return e, nil
}

// message returns the decoded value.
func (e *entry) message(empty func() proto.Message) proto.Message {
	if e.msg != nil {
		return e.msg
	}
	msg := empty()
	if err := proto.Unmarshal(e.raw, msg); err != nil {
		return empty() // it was decoded before: the sender of the op has changed its bytes since
	}
	return msg
}

// handOut returns the decoded value, and gives it away when the state can make another one.
func (e *entry) handOut(empty func() proto.Message) proto.Message {
	msg := e.message(empty)
	if e.raw != nil {
		e.msg = nil
	}
	return msg
}

func newService() proto.Message  { return &localv1.Service{} }
func newEndpoint() proto.Message { return &localv1.Endpoint{} }
