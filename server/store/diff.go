// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"iter"
	"slices"
	"strings"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Diff is what may differ between two snapshots. It can be walked any number of times.
type Diff struct {
	from, to *Snapshot
	// With whole, the trees are compared; otherwise the changed keys, sorted, are looked up.
	whole    bool
	services []string
	nodes    []string
	changes  []change
	event    time.Time
}

// Since returns the difference from an older snapshot of the same store, or, when that is nil, from nothing.
// Its cost follows the number of changes in between (or, when they are too many to be remembered, the size of the
// state, once walked).
func (s *Snapshot) Since(from *Snapshot) *Diff {
	d := &Diff{from: from, to: s}
	if from == nil {
		d.from, d.whole = emptySnapshot(), true
		return d
	}
	changes, known := s.history.since(from.revision)
	if !known {
		d.whole = true
		return d
	}
	for _, c := range changes {
		if c.node {
			d.nodes = append(d.nodes, c.key)
		} else {
			d.services = append(d.services, c.key)
		}
	}
	d.changes = changes
	d.services = sortedSet(d.services)
	d.nodes = sortedSet(d.nodes)
	d.event = oldestEvent(changes)
	return d
}

func sortedSet(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Event returns when the first change was seen by its source; zero when that is not known.
func (d *Diff) Event() time.Time { return d.event }

// Services yields the services that differ as (old, new), ordered by namespace/name. One of the two is nil when the
// service came or went; what exists only as slices counts as not there.
func (d *Diff) Services() iter.Seq2[*Service, *Service] {
	return existing(pairs(d.whole, d.services, d.from.services, d.to.services))
}

// Nodes yields the nodes that differ as (old, new), ordered by name; one of the two is nil when it came or went.
func (d *Diff) Nodes() iter.Seq2[*Node, *Node] {
	return pairs(d.whole, d.nodes, d.from.nodes, d.to.nodes)
}

// AllServices yields every service that exists on either side as (old, new), changed or not: what a reader needs
// whose own place in the cluster changed.
func (d *Diff) AllServices() iter.Seq2[*Service, *Service] {
	return existing(merged(d.from.services, d.to.services))
}

// existing has nil in place of what exists only as slices, and leaves out pairs of which nothing is left.
func existing(pairs iter.Seq2[*Service, *Service]) iter.Seq2[*Service, *Service] {
	return func(yield func(*Service, *Service) bool) {
		for old, new := range pairs {
			if !old.Exists() {
				old = nil
			}
			if !new.Exists() {
				new = nil
			}
			if (old != nil || new != nil) && !yield(old, new) {
				return
			}
		}
	}
}

func pairs[V comparable](whole bool, keys []string, from, to *iradix.Tree[V]) iter.Seq2[V, V] {
	return func(yield func(old, new V) bool) {
		if whole {
			for old, new := range merged(from, to) {
				if old != new && !yield(old, new) {
					return
				}
			}
			return
		}
		for _, key := range keys {
			old, _ := from.Get([]byte(key))
			new, _ := to.Get([]byte(key))
			if old != new && !yield(old, new) {
				return
			}
		}
	}
}

// merged walks two trees together in key order, yielding the values of each key.
func merged[V any](from, to *iradix.Tree[V]) iter.Seq2[V, V] {
	return func(yield func(old, new V) bool) {
		var none V
		a, b := from.Root().Iterator(), to.Root().Iterator()
		ak, av, aok := a.Next()
		bk, bv, bok := b.Next()
		for aok || bok {
			order := 0
			switch {
			case !bok:
				order = -1
			case !aok:
				order = 1
			default:
				order = bytes.Compare(ak, bk)
			}
			old, new := av, bv
			if order > 0 {
				old = none
			}
			if order < 0 {
				new = none
			}
			if !yield(old, new) {
				return
			}
			if order <= 0 {
				ak, av, aok = a.Next()
			}
			if order >= 0 {
				bk, bv, bok = b.Next()
			}
		}
	}
}

// splitKey cuts namespace/name in two. Neither part can hold a slash.
func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}
