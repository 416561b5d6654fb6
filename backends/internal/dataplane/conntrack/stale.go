// SPDX-License-Identifier: Apache-2.0

//go:build linux

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
	dnat     bool // somebody sent it on to who answers
	mark     uint32
}

// rule is what counts as wrong, besides what changed.
type rule struct {
	// tcp: flows of TCP may be wrong.
	tcp bool
	// restart: nothing is known of before the changes, and these are all there is.
	restart bool
	// mark is of flows that are ours alone: with restart those are wrong that no frontend explains.
	mark uint32
}

// stale knows which flows a change set made wrong.
type stale struct {
	rule
	frontends map[dataplane.Key]*rights
	// kept have no wrong flows, and may be ports of an address whose other traffic has.
	kept map[dataplane.Key]bool
	// own tells whether an address is one of this node's, as far as node ports go.
	own func(netip.Addr) bool
}

// rights of a frontend.
type rights struct {
	// now may have flows, was had them.
	now, was map[place]bool
	// first: there are targets now, so a flow that goes to none is wrong.
	first bool
	// restart: nothing is known of before, so a flow that goes to someone else is wrong.
	restart bool
	// tcp: a TCP client whose flow is removed is told so.
	tcp bool
}

type place struct {
	ip   netip.Addr
	port uint16
}

// staleBy is nil if the changes cannot have made any flow wrong.
func staleBy(changes []dataplane.Change, r rule) *stale {
	s := &stale{rule: r, frontends: map[dataplane.Key]*rights{}, kept: map[dataplane.Key]bool{}}
	for _, c := range changes {
		s.add(c)
	}
	for k, r := range s.frontends {
		if k.Protocol == dataplane.TCP && (!r.tcp || !r.restart && len(r.was) == 0) {
			delete(s.frontends, k)
		}
	}
	if len(s.frontends) == 0 && s.mark == 0 {
		return nil
	}
	return s
}

// queries are what of the table has to be looked at, one a family. Of IPv6 the kernel is not asked for an address: as of 6.18
// it answers with all others (ctnetlink_filter_match_tuple takes 0 of ipv6_addr_cmp for a difference).
func (s *stale) queries() (all []query) {
	for _, v6 := range []bool{false, true} {
		q, any := query{v6: v6, redirected: true}, s.mark != 0
		addresses := map[netip.Addr]bool{}
		for k, r := range s.frontends {
			if k.IP.Is6() == v6 {
				any, q.to, addresses[k.IP] = true, k.IP, true
				q.redirected = q.redirected && !r.first
			}
		}
		if len(addresses) != 1 || q.to.IsUnspecified() || s.mark != 0 || v6 {
			q.to = netip.Addr{}
		}
		if any {
			all = append(all, q)
		}
	}
	return all
}

func (s *stale) add(c dataplane.Change) {
	old, now := s.frontendsOf(c.Old), s.frontendsOf(c.New)
	for k, f := range old {
		was, is := places(f), places(now[k])
		if gone(was, is) || len(was) == 0 && len(is) > 0 {
			s.merge(k, &rights{now: is, was: was}, now[k])
		}
	}
	for k, f := range now {
		s.kept[k] = true
		if is := places(f); old[k] == nil && (len(is) > 0 || s.restart) {
			s.merge(k, &rights{now: is, restart: s.restart}, f)
		}
	}
}

// merge is for a frontend that goes from one Service to another in one change set: what the new owner has is right.
func (s *stale) merge(k dataplane.Key, r *rights, now *dataplane.Frontend) {
	if now != nil {
		r.first = k.Protocol != dataplane.TCP && len(targets(now)) > 0
		r.tcp = s.tcp && answers(&now.Pool) && (now.Local == nil || answers(now.Local))
	}
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
		r.first, r.restart, r.tcp = r.first || have.first, r.restart || have.restart, r.tcp || have.tcp
	}
	s.frontends[k] = r
}

// answers tells whether a client hears of it when its connection is new to us: from the next target, which does not know
// it, or from us.
func answers(p *dataplane.Pool) bool { return len(p.Targets) > 0 || p.Empty == dataplane.Reject }

// frontendsOf are those that have flows we may remove.
func (s *stale) frontendsOf(of *dataplane.Service) map[dataplane.Key]*dataplane.Frontend {
	out := map[dataplane.Key]*dataplane.Frontend{}
	if of == nil {
		return out
	}
	for i := range of.Frontends {
		if f := &of.Frontends[i]; s.tcp || f.Protocol != dataplane.TCP {
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

// wrong tells whether the flow is one to be removed.
func (s *stale) wrong(f *flow) bool {
	if f.protocol == uint8(dataplane.TCP) && !s.tcp {
		return false
	}
	goes := place{f.by, f.byPort}
	key := dataplane.Key{IP: f.to.Addr(), Protocol: dataplane.Protocol(f.protocol), Port: f.to.Port()}
	if r := s.frontends[key]; r != nil {
		return r.wrong(f, goes)
	}
	if s.kept[key] {
		return false
	}
	whole := dataplane.Key{IP: key.IP}
	if r := s.frontends[whole]; r != nil {
		return r.wrong(f, place{f.by, 0})
	}
	if s.kept[whole] {
		return false
	}
	if s.own(key.IP) {
		key.IP = unspecified(key.IP)
		if r := s.frontends[key]; r != nil {
			return r.wrong(f, goes)
		}
	}
	return f.dnat && f.mark&s.mark != 0 && f.protocol != uint8(dataplane.TCP)
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func (r *rights) wrong(f *flow, goes place) bool {
	tcp := f.protocol == uint8(dataplane.TCP)
	switch {
	case r.now[goes] || tcp && !r.tcp:
		return false
	case r.was[goes]:
		return true
	}
	// Neither: it went nowhere, or to a target of before we started. Of TCP, what goes nowhere is a connection past us.
	return r.first && !tcp || r.restart && f.dnat
}
