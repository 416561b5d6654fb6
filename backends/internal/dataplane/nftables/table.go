// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// base is a chain at one of the kernel's hooks.
type base struct {
	name     string
	typ      string
	hook     uint32
	hookName string
	priority int
	rules    []rule
}

// layout is the part of the table that does not depend on services.
type layout struct {
	sets   []shared
	chains []chain
	bases  []base
}

// The priorities of the kernel at which addresses are translated.
const (
	prioritySource      = 100
	priorityDestination = -100
)

func layoutOf(o dataplane.Options) *layout {
	l := &layout{}
	services := chain{name: "services"}
	for _, f := range []*family{family4, family6} {
		l.sets = append(l.sets, setsOf(f, o)...)
		services.rules = append(services.rules, lookups(f, o)...)
	}
	l.chains = []chain{
		{emptyChain(dataplane.Reject), []rule{{l4proto(dataplane.TCP), reset}, {unreachable}}},
		{emptyChain(dataplane.Drop), []rule{{drop}}},
		services,
	}
	// Twice: in the instant in which an element is replaced by another with its key, the kernel may find neither (seen with
	// Linux 6.18), and the connection would be none of ours for good.
	toServices := verdict(expr.VerdictJump, "services")
	jump := []rule{{toServices}, {toServices, comment("again: a change may hide a frontend for an instant")}}
	before := priorityDestination - 10 + o.Priority
	l.bases = []base{
		{"prerouting", "nat", unix.NF_INET_PRE_ROUTING, "prerouting", before, jump},
		{"output", "nat", unix.NF_INET_LOCAL_OUT, "output", before, jump},
		{"unmark", "nat", unix.NF_INET_POST_ROUTING, "postrouting", prioritySource - 20 + o.Priority, unmarks(o)},
		{"postrouting", "nat", unix.NF_INET_POST_ROUTING, "postrouting", prioritySource - 10 + o.Priority, masquerades(o)},
	}
	if o.DropInvalid {
		l.bases = append(l.bases, base{"forward", "filter", unix.NF_INET_FORWARD, "forward", 0, []rule{{invalid, drop}}})
	}
	return l
}

// unmarks take the mark from packets to targets on this node. Where a packet goes is known only now; and it is done before
// any owner masquerades, as they may have the same mark and do not know each other's targets.
func unmarks(o dataplane.Options) []rule {
	var rules []rule
	for _, f := range []*family{family4, family6} {
		rules = append(rules, rule{marked("meta", o.Mark), f.in("daddr", "local"+f.suffix, false), clearMark(o.Mark)})
	}
	return rules
}

// masquerades change source addresses.
func masquerades(o dataplane.Options) []rule {
	marks := o.Mark | o.MarkAlways
	rules := []rule{{marked("meta", marks), clearMark(marks), masquerade}}
	for _, f := range []*family{family4, family6} {
		rules = append(rules,
			rule{marked("ct", o.ConnMark), f.pairIn("hairpin" + f.suffix), masquerade},
			rule{unmarked("ct", o.ConnMark), f.in("daddr", "cluster"+f.suffix, true), f.snatBy("egress" + f.suffix)})
	}
	return rules
}

// lookups find a packet's frontend.
func lookups(f *family, o dataplane.Options) []rule {
	node := rule{fibLocal("daddr"), f.notTo(f.loopback)}
	if len(o.NodePortCIDRs) > 0 {
		node = rule{fibLocal("daddr"), f.in("daddr", "node"+f.suffix, false)}
	}
	return []rule{
		{f.byPort("ports" + f.suffix)},
		append(node, byNodePort("nodeports"+f.suffix)),
		{f.byAddress("any" + f.suffix)},
	}
}

func setsOf(f *family, o dataplane.Options) []shared {
	addr := []field{f.addr}
	of := func(all []netip.Prefix) (out []netip.Prefix) {
		for _, p := range all {
			if familyOf(p.Addr()) == f {
				out = append(out, p)
			}
		}
		return out
	}
	sets := []shared{
		{name: "cluster" + f.suffix, key: addr, ranges: true, network: of(o.ClusterCIDRs)},
		{name: "node" + f.suffix, key: addr, ranges: true, network: of(o.NodePortCIDRs)},
		{name: "local" + f.suffix, key: addr},
		{name: "hairpin" + f.suffix, key: []field{f.addr, f.addr}},
		{name: "ports" + f.suffix, key: []field{f.addr, fieldProto, fieldPort}, verdict: true},
		{name: "nodeports" + f.suffix, key: []field{fieldProto, fieldPort}, verdict: true},
		{name: "any" + f.suffix, key: addr, verdict: true},
		{name: "egress" + f.suffix, key: addr, data: addr},
	}
	for _, local := range []bool{false, true} {
		for _, kind := range []string{"", "node", "any"} {
			by := lookup{f: f, kind: kind, local: local}
			sets = append(sets, shared{name: by.set(), key: by.key(), data: by.data(), typeof: true})
		}
	}
	return sets
}

// emptyChain is where traffic ends that has no targets. Its name must be no word of nft's language.
func emptyChain(a dataplane.Action) string { return a.String() + "-it" }

func isEmptyChain(name string) bool {
	return name == emptyChain(dataplane.Reject) || name == emptyChain(dataplane.Drop)
}

// size of the layout.
func (l *layout) size() size {
	s := size{objects: len(l.sets)}
	for _, c := range l.chains {
		s.chain(c.rules, 1)
	}
	for _, b := range l.bases {
		s.chain(b.rules, 1)
	}
	return s
}
