// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// hook is a rule in one of the kernel's chains that leads into ours.
type hook struct {
	table table
	chain string // the kernel's
	rule  rule
}

// hooks are all of the owner's. They stand before what others have there: what is a frontend of ours must reach us.
func (c *compiler) hooks() []hook {
	to := func(chain string) rule { return join(ranked(c.Priority), jump(c.base(chain))) }
	first := join("-m conntrack --ctstate NEW", string(to(refuse)))
	return []hook{
		{filter, "INPUT", first},
		{filter, "FORWARD", first},
		{filter, "FORWARD", to(forward)},
		{filter, "OUTPUT", first},
		{nat, "PREROUTING", to(services)},
		{nat, "OUTPUT", to(services)},
		{nat, "POSTROUTING", to(postrouting)},
	}
}

// ranked is a comment by which other owners know where to stand. No name of a Service looks like it: they have no spaces.
func ranked(priority int) string {
	return fmt.Sprintf(`-m comment --comment "kpng priority %d"`, priority)
}

// rank is where a rule of one of the kernel's chains is to stand.
type rank int

const (
	anywhere rank = iota // as it is: what an administrator or another program has there
	ours
	before // us: an owner with a lower priority
	behind // us: kube-proxy, and an owner with a higher priority
)

// rank of a rule that is not in a chain of ours.
func (c *compiler) rank(r rule) rank {
	target := r.target()
	switch {
	case c.owns(target):
		return ours
	case strings.HasPrefix(target, "KUBE-"):
		return behind
	}
	for priority := range maxPriority + 1 {
		switch {
		case !strings.Contains(string(r), ranked(priority)):
		case priority < c.Priority:
			return before
		case priority > c.Priority:
			return behind
		}
	}
	return anywhere
}

// maxPriority is that of dataplane.Options.
const maxPriority = 9

// spot is where in a chain of the kernel's our hooks are to stand, as far as its rules were passed.
type spot struct {
	others int  // rules that are not ours
	index  int  // how many of those are before the spot
	seen   bool // a hook of ours
	late   bool // something that is to stand behind our hooks came before them
	wrong  bool // a hook of ours is somewhere else
}

func (s spot) pass(r rank) spot {
	if r == ours {
		s.seen = true
		s.wrong = s.wrong || s.late
		return s
	}
	s.others++
	switch r {
	case before:
		s.index = s.others
		s.wrong = s.wrong || s.seen
	case behind:
		s.late = true
	case anywhere, ours:
	}
	return s
}

// misplaced tells whether someone came in before our hooks whom they are to come before.
func (t tableState) misplaced() bool {
	for _, s := range t.spots {
		if s.wrong {
			return true
		}
	}
	return false
}

// hooksOf are the rules of hooks in a chain, in their order.
func (t tableState) hooksOf(chain string) (rules []rule) {
	for _, h := range t.hooks {
		if h.chain == chain {
			rules = append(rules, h.rule)
		}
	}
	return rules
}

// writeHooks leaves the hooks of a chain that are right where they are, and puts all of the others into their spot.
func writeHooks(b *strings.Builder, from, to tableState) {
	spots := from.spots
	if spots == nil {
		spots = to.spots
	}
	chains := map[string]bool{}
	for _, h := range slices.Concat(from.hooks, to.hooks) {
		chains[h.chain] = true
	}
	for _, chain := range slices.Sorted(maps.Keys(chains)) {
		was, is := from.hooksOf(chain), to.hooksOf(chain)
		if slices.Equal(was, is) && !from.spots[chain].wrong {
			continue
		}
		for _, r := range was {
			fmt.Fprintf(b, "-D %s %s\n", chain, r)
		}
		for i, r := range is {
			fmt.Fprintf(b, "-I %s %d %s\n", chain, spots[chain].index+1+i, r)
		}
	}
}
