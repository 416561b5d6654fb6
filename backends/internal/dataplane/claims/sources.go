// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Sources decides which Service's address the connections of a source leave with, where several have an
// [dataplane.Egress] for it, as a pod of two Services has: the first that came, for as long as it wants it; of several
// that come at once the oldest, or else the first by name.
type Sources struct {
	wanted  map[string]*dataplane.Service // by name: those with egress
	owners  map[netip.Addr]string
	waiting map[netip.Addr]map[string]bool
}

// NewSources decides nothing yet.
func NewSources() *Sources {
	return &Sources{
		wanted: map[string]*dataplane.Service{}, owners: map[netip.Addr]string{}, waiting: map[netip.Addr]map[string]bool{},
	}
}

// Update takes changes of Services and returns them with the egress that each has; Old is not looked at. Others that get
// a source because of them follow. Services are not changed. One without egress costs nothing.
func (s *Sources) Update(changes []dataplane.Change) []dataplane.Change {
	touched := map[string]bool{}
	for _, c := range changes {
		s.want(c.Name(), c.New, touched)
	}
	out := make([]dataplane.Change, 0, len(changes))
	at := map[string]int{}
	for _, c := range changes {
		at[c.Name()] = len(out)
		out = append(out, c)
	}
	for _, name := range byAge(touched, s.wanted) {
		if s.wanted[name] == nil {
			continue
		}
		now := s.give(name)
		if i, named := at[name]; named {
			out[i].New = now
		} else {
			out = append(out, dataplane.Change{Old: &dataplane.Service{Name: name}, New: now})
		}
	}
	return out
}

// want notes what a Service wants, lets go of what it had, and names those that are to be looked at.
func (s *Sources) want(name string, now *dataplane.Service, touched map[string]bool) {
	if old := s.wanted[name]; old != nil {
		for _, e := range old.Egress {
			delete(s.waiting[e.Source], name)
			if s.owners[e.Source] != name || leavesFrom(now, e.Source) {
				continue
			}
			delete(s.owners, e.Source)
			for other := range s.waiting[e.Source] {
				touched[other] = true
			}
		}
		delete(s.wanted, name)
	}
	if now != nil && len(now.Egress) != 0 {
		s.wanted[name] = now
		touched[name] = true
	}
}

func leavesFrom(s *dataplane.Service, source netip.Addr) bool {
	return s != nil && slices.ContainsFunc(s.Egress, func(e dataplane.Egress) bool { return e.Source == source })
}

// give is a Service with the egress that it has.
func (s *Sources) give(name string) *dataplane.Service {
	out := *s.wanted[name]
	out.Egress = nil
	for _, e := range s.wanted[name].Egress {
		switch s.owners[e.Source] {
		case "":
			s.owners[e.Source] = name
			fallthrough
		case name:
			delete(s.waiting[e.Source], name)
			out.Egress = append(out.Egress, e)
		default:
			if s.waiting[e.Source] == nil {
				s.waiting[e.Source] = map[string]bool{}
			}
			s.waiting[e.Source][name] = true
		}
		if len(s.waiting[e.Source]) == 0 {
			delete(s.waiting, e.Source)
		}
	}
	return &out
}
