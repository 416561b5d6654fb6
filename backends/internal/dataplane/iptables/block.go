// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// table is one of the two tables that we have chains in. A commit of iptables-restore is one of a table.
type table int

const (
	filter table = iota
	nat
)

var tables = [...]table{filter, nat}

func (t table) String() string { return [...]string{"filter", "nat"}[t] }

// rule is a rule of a chain, without the -A and the chain, written as iptables-save does.
type rule string

// rulesOf are rules by the chain they are in.
type rulesOf map[string][]rule

// block is what one Service has in one table: chains of its own, and its rules in the chains that all share. The order
// among the rules of several Services in a shared chain has no meaning, so they can come and go at its end.
type block struct {
	own    rulesOf
	shared rulesOf
}

func newBlock() *block { return &block{own: rulesOf{}, shared: rulesOf{}} }

func (b *block) share(chain string, r rule) { b.shared[chain] = append(b.shared[chain], r) }

// delta is what iptables-restore has to do for one table: text for a change of blocks.
type delta struct {
	declare []string // chains to make, or to empty
	remove  []string // rules out of shared chains
	add     []string
	drop    []string // chains to delete
}

func (d *delta) empty() bool {
	return len(d.declare) == 0 && len(d.remove) == 0 && len(d.add) == 0 && len(d.drop) == 0
}

// change adds what makes before become after; either may be nil. Chains that stay as they are are not written.
func (d *delta) change(before, after *block) {
	if before == nil {
		before = &block{}
	}
	if after == nil {
		after = &block{}
	}
	for _, chain := range slices.Sorted(maps.Keys(after.own)) {
		if was, ok := before.own[chain]; ok && slices.Equal(was, after.own[chain]) {
			continue
		}
		d.declare = append(d.declare, chain)
		for _, r := range after.own[chain] {
			d.add = append(d.add, fmt.Sprintf("-A %s %s", chain, r))
		}
	}
	d.changeShared(before.shared, after.shared)
	for _, chain := range slices.Sorted(maps.Keys(before.own)) {
		if _, stays := after.own[chain]; !stays {
			d.drop = append(d.drop, chain)
		}
	}
}

func (d *delta) changeShared(before, after rulesOf) {
	for _, chain := range slices.Sorted(maps.Keys(before)) {
		for _, r := range without(before[chain], after[chain]) {
			d.remove = append(d.remove, fmt.Sprintf("-D %s %s", chain, r))
		}
	}
	for _, chain := range slices.Sorted(maps.Keys(after)) {
		for _, r := range without(after[chain], before[chain]) {
			d.add = append(d.add, fmt.Sprintf("-A %s %s", chain, r))
		}
	}
}

// without returns the rules that are not among the others. A Service has few in a shared chain.
func without(rules, others []rule) []rule {
	var left []rule
	for _, r := range rules {
		if !slices.Contains(others, r) {
			left = append(left, r)
		}
	}
	return left
}

// text is the transaction. A chain is declared also to be dropped: that empties it, and the order of the rest lets no
// rule lead to a chain that is not there.
func (d *delta) text(t table) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t)
	for _, chain := range slices.Concat(d.declare, d.drop) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chain)
	}
	for _, line := range slices.Concat(d.remove, d.add) {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	for _, chain := range d.drop {
		fmt.Fprintf(&b, "-X %s\n", chain)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
