// SPDX-License-Identifier: Apache-2.0

// Package conntrack removes from the kernel's table of connections the flows that a change made wrong. Rules are asked
// once for a flow; without this, datagrams of a client that keeps its port go on to a target that is gone, or
// nowhere although there are targets now.
//
// What is wrong is decided from the flow alone: it was sent to a frontend of a changed Service, and does not go to a target
// that this frontend has, or drains. So nothing that is right is removed, also not after a restart, when everything
// counts as changed. The table is listed once for a change set, and only if something in it can have made flows wrong.
//
// TCP is left alone: its connections end by themselves, or are reset by whoever has the address next.
package conntrack

import (
	"net/netip"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// flow is a connection as the table has it.
type flow struct {
	protocol uint8
	to       netip.AddrPort // as the client sent it; the port is 0 where there is none
	by       netip.Addr     // who answers
	byPort   uint16
}

// redirected tells whether someone else answers than whom the client asked.
func (f *flow) redirected() bool {
	return f.by != f.to.Addr() || f.byPort != f.to.Port() && f.byPort != 0
}

// stale knows which flows a change set made wrong.
type stale struct {
	frontends map[dataplane.Key]*rights
	// kept have no wrong flows, and may be ports of an address whose other traffic has.
	kept   map[dataplane.Key]bool
	v4, v6 bool
}

// rights of a frontend.
type rights struct {
	// now may have flows, was had them.
	now, was map[place]bool
	// first: there are targets now, so a flow that goes to none is wrong.
	first bool
	// restart: nothing is known of before, so a flow that goes to someone else is wrong.
	restart bool
}

type place struct {
	ip   netip.Addr
	port uint16
}

// staleBy is nil if the changes cannot have made any flow wrong. With restart, flows from before the first change count.
func staleBy(changes []dataplane.Change, restart bool) *stale {
	s := &stale{frontends: map[dataplane.Key]*rights{}, kept: map[dataplane.Key]bool{}}
	for _, c := range changes {
		s.add(c, restart)
	}
	if len(s.frontends) == 0 {
		return nil
	}
	for k := range s.frontends {
		s.v4, s.v6 = s.v4 || k.IP.Is4(), s.v6 || k.IP.Is6()
	}
	return s
}

func (s *stale) add(c dataplane.Change, restart bool) {
	old, now := frontendsOf(c.Old), frontendsOf(c.New)
	for k, f := range old {
		was, is := places(f), places(now[k])
		if gone(was, is) || len(was) == 0 && now[k] != nil && len(is) > 0 {
			s.merge(k, &rights{now: is, was: was, first: now[k] != nil && len(targets(now[k])) > 0})
		}
	}
	for k, f := range now {
		s.kept[k] = true
		if is := places(f); old[k] == nil && (len(is) > 0 || restart) {
			s.merge(k, &rights{now: is, first: len(targets(f)) > 0, restart: restart})
		}
	}
}

// merge is for a frontend that goes from one Service to another in one change set: what the new owner has is right.
func (s *stale) merge(k dataplane.Key, r *rights) {
	if have := s.frontends[k]; have != nil {
		for p := range have.now {
			r.now[p] = true
		}
		for p := range have.was {
			if r.was == nil {
				r.was = map[place]bool{}
			}
			r.was[p] = true
		}
		r.first, r.restart = r.first || have.first, r.restart || have.restart
	}
	s.frontends[k] = r
}

// frontendsOf are those that have flows we may remove.
func frontendsOf(s *dataplane.Service) map[dataplane.Key]*dataplane.Frontend {
	out := map[dataplane.Key]*dataplane.Frontend{}
	if s == nil {
		return out
	}
	for i := range s.Frontends {
		if f := &s.Frontends[i]; f.Protocol != dataplane.TCP {
			out[f.Key()] = f
		}
	}
	return out
}

func targets(f *dataplane.Frontend) []dataplane.Target {
	out := append([]dataplane.Target(nil), f.Pool.Targets...)
	if f.Local != nil {
		out = append(out, f.Local.Targets...)
	}
	return out
}

// places are where a frontend's flows may go.
func places(f *dataplane.Frontend) map[place]bool {
	out := map[place]bool{}
	if f == nil {
		return out
	}
	all := append(targets(f), f.Pool.Draining...)
	if f.Local != nil {
		all = append(all, f.Local.Draining...)
	}
	for _, t := range all {
		port := t.Port
		if port == 0 {
			port = f.Port
		}
		out[place{t.IP, port}] = true
	}
	return out
}

func gone(was, is map[place]bool) bool {
	for p := range was {
		if !is[p] {
			return true
		}
	}
	return false
}

// wrong tells whether the flow is one to be removed. Own tells whether an address is this node's.
func (s *stale) wrong(f *flow, own func(netip.Addr) bool) bool {
	if f.protocol == uint8(dataplane.TCP) {
		return false
	}
	to, protocol := f.to.Addr(), dataplane.Protocol(f.protocol)
	key := dataplane.Key{IP: to, Protocol: protocol, Port: f.to.Port()}
	if r := s.frontends[key]; r != nil {
		return r.wrong(f, place{f.by, f.byPort})
	}
	if s.kept[key] {
		return false
	}
	if r := s.frontends[dataplane.Key{IP: to}]; r != nil {
		return r.wrong(f, place{f.by, 0})
	}
	key.IP = netip.IPv4Unspecified()
	if to.Is6() {
		key.IP = netip.IPv6Unspecified()
	}
	if r := s.frontends[key]; r != nil && own(to) {
		return r.wrong(f, place{f.by, f.byPort})
	}
	return false
}

func (r *rights) wrong(f *flow, goes place) bool {
	switch {
	case r.now[goes]:
		return false
	case r.was[goes]:
		return true
	}
	// Neither: it went nowhere, or to a target of before we started.
	return r.first || r.restart && f.redirected()
}
