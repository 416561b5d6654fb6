// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"net/netip"
	"slices"
)

// Normalize sorts everything whose order has no meaning, in place, so that equal services compare equal.
func (s *Service) Normalize() {
	for i := range s.Frontends {
		f := &s.Frontends[i]
		f.Pool.normalize()
		if f.Local != nil {
			f.Local.normalize()
		}
		slices.SortFunc(f.Sources, func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
		if f.Sources != nil {
			f.Sources = slices.Compact(f.Sources)
		}
	}
	slices.SortFunc(s.Frontends, func(a, b Frontend) int { return a.Key().Compare(b.Key()) })
	slices.SortFunc(s.Egress, func(a, b Egress) int {
		return cmp.Or(a.Source.Compare(b.Source), a.IP.Compare(b.IP))
	})
	s.Egress = slices.Compact(s.Egress)
}

func (p *Pool) normalize() {
	slices.SortFunc(p.Targets, Target.Compare)
	slices.SortFunc(p.Draining, Target.Compare)
}

// Compare orders targets by what they are.
func (t Target) Compare(u Target) int {
	return cmp.Or(t.IP.Compare(u.IP), cmp.Compare(t.Port, u.Port))
}

// Compare orders keys by address, protocol, port.
func (k Key) Compare(l Key) int {
	return cmp.Or(k.IP.Compare(l.IP), cmp.Compare(k.Protocol, l.Protocol), cmp.Compare(k.Port, l.Port))
}

// Equal tells whether two services, both normalized, are the same by value. Nil equals nil only.
func Equal(a, b *Service) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	return a.Name == b.Name && slices.Equal(a.Egress, b.Egress) &&
		slices.EqualFunc(a.Frontends, b.Frontends, func(f, g Frontend) bool { return f.Equal(&g) })
}

// Equal tells whether two frontends, both of normalized services, are the same by value.
func (f *Frontend) Equal(g *Frontend) bool {
	return f.Kind == g.Kind && f.Key() == g.Key() && f.Affinity == g.Affinity && f.Masquerade == g.Masquerade &&
		(f.Sources == nil) == (g.Sources == nil) && slices.Equal(f.Sources, g.Sources) &&
		f.Pool.Equal(&g.Pool) && (f.Local == nil) == (g.Local == nil) && (f.Local == nil || f.Local.Equal(g.Local))
}

// Equal tells whether two normalized pools are the same by value.
func (p *Pool) Equal(q *Pool) bool {
	return p.Empty == q.Empty && slices.Equal(p.Targets, q.Targets) && slices.Equal(p.Draining, q.Draining)
}
