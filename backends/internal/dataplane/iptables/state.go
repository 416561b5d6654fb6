// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tableState is all that an owner has in a table: its chains, and its hooks in the kernel's chains.
type tableState struct {
	chains rulesOf
	hooks  []hook
	// spots are where hooks are to stand in the kernel's chains. One that is not named has nobody else's rules.
	spots map[string]spot
}

// parse finds what is the owner's in what iptables-save says.
func (c *compiler) parse(listing string) tableState {
	s := tableState{chains: rulesOf{}, spots: map[string]spot{}}
	for line := range strings.Lines(listing) {
		line = strings.TrimRight(line, "\n")
		if name, isChain := strings.CutPrefix(line, ":"); isChain {
			name, _, _ = strings.Cut(name, " ")
			if c.owns(name) {
				s.chains[name] = nil
			}
			continue
		}
		text, isRule := strings.CutPrefix(line, "-A ")
		if !isRule {
			continue
		}
		chain, r, _ := strings.Cut(text, " ")
		if c.owns(chain) {
			s.chains[chain] = append(s.chains[chain], rule(r))
			continue
		}
		rank := c.rank(rule(r))
		if rank == ours {
			s.hooks = append(s.hooks, hook{chain: chain, rule: rule(r)})
		}
		s.spots[chain] = s.spots[chain].pass(rank)
	}
	return s
}

// target is the chain that a rule leads to, or what else follows -j or -g. It is last but for options of targets, and
// comments, which may say anything, stand before it.
func (r rule) target() string {
	words := strings.Fields(string(r))
	for i := len(words) - 2; i >= 0; i-- {
		if words[i] == "-j" || words[i] == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// transition is the transaction that puts one state in the place of another. Chains that are the same in both are left out:
// the text of a rule is what iptables-save shows of it.
func transition(t table, from, to tableState) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t)
	var chains, gone []string
	for _, chain := range slices.Sorted(maps.Keys(to.chains)) {
		if rules, there := from.chains[chain]; !there || !slices.Equal(rules, to.chains[chain]) {
			chains = append(chains, chain)
		}
	}
	for _, chain := range slices.Sorted(maps.Keys(from.chains)) {
		if _, stays := to.chains[chain]; !stays {
			gone = append(gone, chain)
		}
	}
	for _, chain := range slices.Concat(chains, gone) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", chain)
	}
	writeHooks(&b, from, to)
	for _, chain := range chains {
		for _, r := range to.chains[chain] {
			fmt.Fprintf(&b, "-A %s %s\n", chain, r)
		}
	}
	for _, chain := range gone {
		fmt.Fprintf(&b, "-X %s\n", chain)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
