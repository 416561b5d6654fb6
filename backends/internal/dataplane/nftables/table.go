// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// shared is a set or map that all services have elements in.
type shared struct {
	name    string
	key     []nft.SetDatatype
	data    nft.SetDatatype // invalid: a set
	network []netip.Prefix  // an interval set with just these
	ranges  bool
}

// base is a chain at one of the kernel's hooks.
type base struct {
	name     string
	hook     *nft.ChainHook
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

func layoutOf(o dataplane.Options) layout {
	var l layout
	services := chain{name: "services"}
	post := base{name: "postrouting", hook: nft.ChainHookPostrouting, hookName: "postrouting", priority: 100 - 10 + o.Priority}
	for _, f := range []*family{family4, family6} {
		l.sets = append(l.sets, setsOf(f, o)...)
		services.rules = append(services.rules, lookups(f, o)...)
	}
	post.rules = append(post.rules, rule{marked("meta", o.MarkAlways, true), clearMark(o.Mark | o.MarkAlways), masquerade})
	for _, f := range []*family{family4, family6} {
		post.rules = append(post.rules,
			rule{marked("meta", o.Mark, true), f.in("daddr", "remote"+f.suffix, false), clearMark(o.Mark), masquerade},
			rule{marked("ct", o.ConnMark, true), f.pairIn("hairpin" + f.suffix), masquerade},
			rule{marked("ct", o.ConnMark, false), f.in("daddr", "cluster"+f.suffix, true), f.snatBy("egress" + f.suffix)})
	}
	l.chains = []chain{
		{emptyChain(dataplane.Reject), []rule{{l4proto(dataplane.TCP), reset}, {unreachable}}},
		{emptyChain(dataplane.Drop), []rule{{drop}}},
		services,
	}
	jump := []rule{{verdict(expr.VerdictJump, "services")}}
	l.bases = []base{
		{"prerouting", nft.ChainHookPrerouting, "prerouting", -100 - 10 + o.Priority, jump},
		{"output", nft.ChainHookOutput, "output", -100 - 10 + o.Priority, jump},
		post,
	}
	return l
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
	addr := []nft.SetDatatype{f.addr}
	of := func(all []netip.Prefix) (out []netip.Prefix) {
		for _, p := range all {
			if familyOf(p.Addr()) == f {
				out = append(out, p)
			}
		}
		return out
	}
	return []shared{
		{name: "cluster" + f.suffix, key: addr, ranges: true, network: of(o.ClusterCIDRs)},
		{name: "node" + f.suffix, key: addr, ranges: true, network: of(o.NodePortCIDRs)},
		{name: "remote" + f.suffix, key: addr},
		{name: "hairpin" + f.suffix, key: []nft.SetDatatype{f.addr, f.addr}},
		{name: "ports" + f.suffix, key: []nft.SetDatatype{f.addr, nft.TypeInetProto, nft.TypeInetService}, data: nft.TypeVerdict},
		{name: "nodeports" + f.suffix, key: []nft.SetDatatype{nft.TypeInetProto, nft.TypeInetService}, data: nft.TypeVerdict},
		{name: "any" + f.suffix, key: addr, data: nft.TypeVerdict},
		{name: "egress" + f.suffix, key: addr, data: f.addr},
	}
}

// emptyChain is where traffic ends that has no targets. Its name must be no word of nft's language.
func emptyChain(a dataplane.Action) string { return a.String() + "-it" }
