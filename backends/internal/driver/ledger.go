// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// mostTriggers bounds what is remembered of a service that cannot be written. The oldest are kept.
const mostTriggers = 32

// ledger is what is desired, and how far the kernel is. It is where the goroutine that writes and all others meet.
type ledger struct {
	mu       sync.Mutex
	desired  map[string]*dataplane.Service
	pending  map[string]bool // names of services that changed since they were taken
	triggers map[string][]time.Time
	since    time.Time // the first entry; what happened before did not wait for us

	writing  bool
	taken    int   // names that are being written
	suspects int   // names that a later round will come back to
	failure  error // of the last round; nil: the kernel was as desired
	stuck    bool  // the last round wrote nothing
	changed  chan struct{}
	gauge    func(float64) // of the names that wait
}

func newLedger(gauge func(float64)) *ledger {
	return &ledger{
		desired: map[string]*dataplane.Service{}, pending: map[string]bool{}, triggers: map[string][]time.Time{},
		failure: errNothingYet, changed: make(chan struct{}), gauge: gauge,
	}
}

var errNothingYet = errors.New("nothing was written yet")

func (l *ledger) enter(changes []dataplane.Change, triggers map[string]time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		l.since = time.Now()
	}
	for _, c := range changes {
		name := c.Name()
		l.pending[name] = true
		if c.New == nil {
			delete(l.desired, name)
		} else {
			l.desired[name] = c.New
		}
		if at := triggers[name]; at.After(l.since) && len(l.triggers[name]) < mostTriggers {
			l.triggers[name] = append(l.triggers[name], at)
		}
	}
	l.tell()
}

// tell wakes those that watch; mu is held.
func (l *ledger) tell() {
	l.gauge(float64(len(l.pending) + l.taken + l.suspects))
	close(l.changed)
	l.changed = make(chan struct{})
}

// watch returns what is closed at the next change.
func (l *ledger) watch() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// settled tells whether nothing is left that was not tried, and what is wrong.
func (l *ledger) settled() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tried := len(l.pending) == 0 && !errors.Is(l.failure, errNothingYet)
	return !l.writing && (tried || l.stuck), l.failure
}

// alive tells whether the last round wrote what the kernel takes.
func (l *ledger) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.stuck && !errors.Is(l.failure, errNothingYet)
}

// take hands over what changed, and what is desired of that and of more; of all services with full.
func (l *ledger) take(full bool, more []string) *round {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &round{full: full, names: slices.Sorted(maps.Keys(l.pending)), triggers: map[string][]time.Time{}}
	clear(l.pending)
	l.writing, l.taken = true, len(r.names)
	if full {
		r.desired = maps.Clone(l.desired)
	} else {
		r.desired = make(map[string]*dataplane.Service, len(r.names)+len(more))
	}
	for _, names := range [][]string{r.names, more} {
		for _, name := range names {
			if s := l.desired[name]; s != nil {
				r.desired[name] = s
			}
			if at := l.triggers[name]; at != nil {
				r.triggers[name] = at
				delete(l.triggers, name)
			}
		}
	}
	return r
}

// giveBack is take undone: the round has written nothing.
func (l *ledger) giveBack(r *round) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restore(r)
	l.tell()
}

// restore what a round was to write; mu is held.
func (l *ledger) restore(r *round) {
	for _, name := range r.names {
		l.pending[name] = true
	}
	l.writing, l.taken = false, 0
	l.keep(r.triggers)
}

// keep the triggers of services that were not written; mu is held.
func (l *ledger) keep(triggers map[string][]time.Time) {
	for name, at := range triggers {
		all := slices.Concat(at, l.triggers[name])
		l.triggers[name] = all[:min(len(all), mostTriggers)]
	}
}

// close ends a round that has done what it could.
func (l *ledger) close(r *round, failure error, suspects int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing, l.taken, l.suspects, l.failure, l.stuck = false, 0, suspects, failure, false
	l.keep(r.triggers)
	l.tell()
}

// fail ends a round with an error about all services: they are to be written still.
func (l *ledger) fail(r *round, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restore(r)
	l.failure, l.stuck = err, true
	l.tell()
}
