// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
)

// written is what we know to be in a table: how many rules each of our chains has. The text of the rules is not kept,
// because versions of iptables-save write it differently.
type written struct {
	rules map[string]int
	hooks int
}

func newWritten(s tableState) written {
	w := written{rules: make(map[string]int, len(s.chains)), hooks: len(s.hooks)}
	for chain, rules := range s.chains {
		w.rules[chain] = len(rules)
	}
	return w
}

func (w written) equal(v written) bool { return w.hooks == v.hooks && maps.Equal(w.rules, v.rules) }

// change follows a change of a Service that was written.
func (w written) change(before, after *block) {
	if before != nil {
		for chain := range before.own {
			delete(w.rules, chain)
		}
		for chain, rules := range before.shared {
			w.rules[chain] -= len(rules)
		}
	}
	if after != nil {
		for chain, rules := range after.own {
			w.rules[chain] = len(rules)
		}
		for chain, rules := range after.shared {
			w.rules[chain] += len(rules)
		}
	}
}

// seen is when the tables were last known to be right.
type seen struct {
	fingerprints []uint64 // of the kernel's tables; nil: never, or not since we wrote
	sum          uint64   // of our rules as they were listed; 0: not listed since we wrote
}

var seed = maphash.MakeSeed()

// Check implements dataplane.Writer. As long as nobody but us has changed the tables of the kernel, that is one number
// a table. Otherwise they are listed once: are all our chains there with all their rules, and do these read as they did
// when they were listed before? And are our hooks still before kube-proxy's?
func (w *Writer) Check(ctx context.Context) (bool, error) {
	if w.tools == nil {
		return false, nil
	}
	now := w.fingerprints()
	if now != nil && slices.Equal(now, w.seen.fingerprints) {
		return true, nil
	}
	var sum maphash.Hash
	sum.SetSeed(seed)
	for _, t := range w.tools {
		if t == nil {
			continue
		}
		for _, table := range tables {
			listing, err := t.save(ctx, table.String())
			if err != nil {
				return false, fmt.Errorf("iptables: checking: %w", err)
			}
			there := w.parse(listing)
			if there.misplaced() || !newWritten(there).equal(w.written[t.family][table]) {
				w.seen = seen{}
				return false, nil
			}
			_, _ = sum.WriteString(transition(table, tableState{}, there))
		}
	}
	if w.seen.sum != 0 && w.seen.sum != sum.Sum64() {
		w.seen = seen{}
		return false, nil
	}
	w.seen = seen{now, sum.Sum64()}
	return true, nil
}

// advance follows the fingerprints over transactions of ours, if nobody else came in between.
func (w *Writer) advance(before []uint64, steps []step) {
	undisturbed := before != nil && slices.Equal(before, w.seen.fingerprints)
	w.seen = seen{}
	after := w.fingerprints()
	if !undisturbed || after == nil {
		return
	}
	commits := uint64(0)
	for _, s := range steps {
		if s.tool.flavor == NFT {
			commits++
		}
	}
	i := 0
	for _, t := range w.tools {
		if t != nil && t.flavor == NFT && after[i] != before[i]+commits {
			return
		}
		if t != nil {
			i += t.fingerprintLen()
		}
	}
	w.seen.fingerprints = after
}

// fingerprints are numbers that differ after someone changed the tables; nil when they cannot be had.
func (w *Writer) fingerprints() []uint64 {
	var all []uint64
	for _, t := range w.tools {
		if t == nil {
			continue
		}
		numbers, err := t.fingerprint()
		if err != nil {
			return nil
		}
		all = append(all, numbers...)
	}
	return all
}
