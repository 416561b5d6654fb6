// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"sync"
)

// gate opens once, when every feed that was known by then has listed and watches.
type gate struct {
	mu      sync.Mutex
	waiting map[*feed]struct{}
	open    bool
	onOpen  func()
}

func newGate(onOpen func()) *gate { return &gate{waiting: map[*feed]struct{}{}, onOpen: onOpen} }

// add makes the gate wait for a feed, unless it is open already.
func (g *gate) add(f *feed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.open {
		g.waiting[f] = struct{}{}
	}
}

// done says that the gate need not wait for a feed (any more).
func (g *gate) done(f *feed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return
	}
	delete(g.waiting, f)
	if len(g.waiting) == 0 {
		g.open = true
		g.onOpen()
	}
}

// awaited names the feeds that the gate waits for; none when it is open.
func (g *gate) awaited() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := make([]string, 0, len(g.waiting))
	for f := range g.waiting {
		names = append(names, f.name)
	}
	slices.Sort(names)
	return names
}
