// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"slices"

	"sigs.k8s.io/kpng/api/localv1"
)

// Change tells that a service became known, is not known any more, or differs.
type Change struct {
	// Path is namespace/name.
	Path string
	// Record is the service now, nil when it is gone. It is good until the next Commit.
	Record *Record
}

// Commit makes the change set the state. It returns the services that differ from before, by path, and whether the
// change set was a full resend.
func (s *State) Commit() (changes []Change, resent bool) {
	resent, s.resetting = s.resetting, false
	if resent {
		for path, r := range s.services {
			if s.noted[path] == nil {
				s.noted[path] = &note{path: path, record: r}
			}
		}
	}
	for _, n := range s.noted {
		if change, ok := s.apply(n, resent); ok {
			changes = append(changes, change)
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
	// A map does not shrink; the one of a full resend would stay as large as the state.
	s.noted, s.last = map[string]*note{}, nil
	return changes, resent
}

// apply carries one note out, and says whether that can be seen from outside.
func (s *State) apply(n *note, resent bool) (Change, bool) {
	var before Record
	if n.record != nil {
		before = *n.record
	}
	after := before
	if resent {
		after.service, after.endpoints = nil, nil
	}
	if n.serviceNoted {
		after.service = n.service
	}
	after.endpoints = merge(after.endpoints, n.endpoints)
	if before.service == after.service && slices.Equal(before.endpoints, after.endpoints) {
		return Change{}, false
	}

	r := n.record
	switch {
	case after.service == nil && len(after.endpoints) == 0:
		r.dead = true
		s.dead++
		delete(s.services, n.path)
	case r == nil:
		r = &Record{path: n.path}
		s.services[r.path] = r
		s.order = append(s.order, r)
		s.unsorted++
		fallthrough
	default:
		r.service, r.endpoints = after.service, after.endpoints
	}

	// Keys are not seen: what stands under other keys than before, as after a move from one EndpointSlice to another,
	// is no difference.
	sameValue := func(a, b *entry) bool { return a.hash == b.hash }
	switch {
	case before.service == after.service && slices.EqualFunc(before.endpoints, after.endpoints, sameValue):
		return Change{}, false
	case after.service != nil:
		return Change{Path: n.path, Record: r}, true
	case before.service != nil:
		return Change{Path: n.path}, true
	default:
		return Change{}, false // endpoints of a service that is not known
	}
}

// merge returns what is held with what was noted of it; the last note about a key counts.
func merge(held []*entry, notes []touch) []*entry {
	if len(notes) == 0 {
		return held
	}
	byKey := func(a, b touch) int { return cmp.Compare(a.key, b.key) }
	if !slices.IsSortedFunc(notes, byKey) {
		slices.SortStableFunc(notes, byKey)
	}
	merged := make([]*entry, 0, len(held)+len(notes))
	for i, note := range notes {
		if i+1 < len(notes) && notes[i+1].key == note.key {
			continue
		}
		for len(held) > 0 && held[0].key < note.key {
			merged, held = append(merged, held[0]), held[1:]
		}
		if len(held) > 0 && held[0].key == note.key {
			held = held[1:]
		}
		if note.entry != nil {
			merged = append(merged, note.entry)
		}
	}
	return append(merged, held...)
}

// Len is the number of services, known only by their endpoints included.
func (s *State) Len() int { return len(s.services) }

// Records returns all services by path, known only by their endpoints included. They are good until the next Commit.
// It costs nothing when no service came or went since the last call.
func (s *State) Records() []*Record {
	if s.dead == 0 && s.unsorted == 0 {
		return s.order
	}
	old, fresh := s.order[:len(s.order)-s.unsorted], s.order[len(s.order)-s.unsorted:]
	slices.SortFunc(fresh, func(a, b *Record) int { return cmp.Compare(a.path, b.path) })
	order := make([]*Record, 0, len(s.services))
	for len(old) > 0 || len(fresh) > 0 {
		from := &old
		if len(old) == 0 || len(fresh) > 0 && fresh[0].path < old[0].path {
			from = &fresh
		}
		if r := (*from)[0]; !r.dead {
			order = append(order, r)
		}
		*from = (*from)[1:]
	}
	s.order, s.unsorted, s.dead = order, 0, 0
	return order
}

// Path is namespace/name.
func (r *Record) Path() string { return r.path }

// Known says whether there is a service, not just endpoints of one.
func (r *Record) Known() bool { return r.service != nil }

// Service returns the service, which must be known. It belongs to the state when that keeps messages, else to the caller.
func (r *Record) Service() *localv1.Service { return r.service.handOut(newService).(*localv1.Service) }

// EndpointCount is the number of endpoints.
func (r *Record) EndpointCount() int { return len(r.endpoints) }

// AppendEndpoints appends the endpoints, by key. They belong to whom the service belongs to.
func (r *Record) AppendEndpoints(to []*localv1.Endpoint) []*localv1.Endpoint {
	for _, e := range r.endpoints {
		to = append(to, e.handOut(newEndpoint).(*localv1.Endpoint))
	}
	return to
}
