// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// common is a chain that frontends of many services may share. Its name tells all that it does.
type common interface {
	name() string
	rules(dataplane.Options) []rule
}

// named is a common chain with its name, which takes time to make.
type named struct {
	common
	known string
}

// choice is a chain that chooses among the targets of a frontend that has between least and most of them. It is not
// for one number: so a target that comes or goes is a change of elements only, and those of maps to addresses. After
// a change in a map to verdicts the kernel walks through all that are in maps to verdicts.
type choice struct {
	lookup
	protocol    dataplane.Protocol
	least, most int
}

// choiceOf is for n targets. The steps are 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on.
func choiceOf(l lookup, p dataplane.Protocol, n int) choice {
	least, most := 1, 1
	for power := 1; most < n; power *= 2 {
		least, most = most+1, power*2
		if power > 1 && n <= power*3/2 {
			most = power * 3 / 2
		} else if power > 1 {
			least = power*3/2 + 1
		}
	}
	return choice{lookup: l, protocol: p, least: least, most: most}
}

func (c choice) name() string {
	if c.protocol == dataplane.Any {
		return fmt.Sprintf("%s-%d", c.set(), c.most)
	}
	return fmt.Sprintf("%s-%s-%d", c.set(), c.protocol, c.most)
}

// draws is how many times a number that is no target's is drawn again. After that it is drawn below least, where all are;
// with at most a third of the numbers missing, no target gets 1.3 percent less than its part.
const draws = 4

// moduli are below what numbers are drawn, one after the other.
func (c choice) moduli() []int {
	var all []int
	if c.least < c.most {
		all = slices.Repeat([]int{c.most}, draws)
	}
	// The last is for a packet that is here while targets go away, or while the first one is replaced.
	return append(all, c.least, 1)
}

func (c choice) rules(o dataplane.Options) []rule {
	rules := []rule{{setMark("ct", o.ConnMark)}}
	for _, n := range c.moduli() {
		if c.protocol == dataplane.Any {
			rules = append(rules, rule{c.dnat(n)})
		} else { // nft wants to know that there are ports
			rules = append(rules, rule{l4proto(c.protocol), c.dnat(n)})
		}
	}
	return append(rules, rule{drop})
}

// marking is a chain that marks what is to be masqueraded, before a target is chosen.
type marking struct {
	way dataplane.Masquerade
	f   *family
	to  string
}

func (m marking) name() string { return m.way.String() + "-" + m.to }

func (m marking) rules(o dataplane.Options) []rule {
	switch m.way {
	case dataplane.NonLocal:
		return []rule{{m.f.in("saddr", "cluster"+m.f.suffix, true), setMark("meta", o.Mark)}, {goTo(m.to)}}
	case dataplane.Remote:
		return []rule{{setMark("meta", o.Mark), goTo(m.to)}}
	}
	return []rule{{setMark("meta", o.MarkAlways), goTo(m.to)}}
}

// origin is a chain that tells what comes from this node and the cluster from what comes from outside.
type origin struct {
	f               *family
	inside, outside string
}

// name has the family in it, also where neither of the two is a chain of the family.
func (g origin) name() string {
	name := g.inside + "--" + g.outside
	if isEmptyChain(g.inside) && isEmptyChain(g.outside) {
		name += g.f.suffix
	}
	return name
}

func (g origin) rules(dataplane.Options) []rule {
	return []rule{
		{g.f.in("saddr", "cluster"+g.f.suffix, false), goTo(g.inside)},
		{fibLocal("saddr"), goTo(g.inside)},
		{goTo(g.outside)},
	}
}
