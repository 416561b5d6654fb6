// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Bounds of a round. A refused transaction costs the kernel about as much as one that it takes.
const (
	// replaceTime is for what time, about, a full round looks for a service that the kernel refuses, while that does what an
	// earlier run wrote; searchTime is that of each search after that, while other changes wait.
	replaceTime = 20 * time.Second
	searchTime  = 2 * time.Second
	// fewestExclusions and mostExclusions bound the attempts of a full round, however long they take.
	fewestExclusions = 8
	mostExclusions   = 500
	// mostAttempts is how many transactions the search for refused services takes at most, each time.
	mostAttempts = 64
	// mostProbes is how many services are tried again that are known to be refused.
	mostProbes = 16
)

// round is one pass over what waits.
type round struct {
	full    bool
	names   []string                      // what changed
	desired map[string]*dataplane.Service // of the names and of what waits since earlier rounds; full: of all

	triggers map[string][]time.Time // of services that are not written yet

	replaced bool               // the first transaction was made, which leaves nothing of before
	applied  []dataplane.Change // by the others
	refused  []string           // found out in this round
	accepted []string           // written, and refused before
	causes   map[cause]bool
	attempts int  // transactions, also those that failed
	looked   bool // whether someone else altered the rules
	halved   bool // a search got on, and has not ended
}

// errAltered: a transaction failed because the kernel does not have any more what was written.
var errAltered = errors.New("the rules were altered by someone else")

// sync is one round: it writes what changed since the last one, or everything. Due: what was refused is tried again.
// It tells whether there is news: something failed that did not before, or does not fail any more.
func (d *Driver) sync(ctx context.Context, due bool) (news bool) {
	full := d.written == nil || d.altered
	r := d.ledger.take(full, d.waiting(due))
	if !full && !due && len(r.names) == 0 {
		d.ledger.giveBack(r)
		return false
	}
	start, first := time.Now(), d.written == nil
	r.causes = map[cause]bool{}
	err := d.write(ctx, r, due)
	if errors.Is(err, errAltered) {
		d.ledger.giveBack(r)
		return d.sync(ctx, due) // this one is full
	}
	d.cleanFlows(ctx, r, err)
	d.observeLatency(r, first)
	news = len(r.refused) != 0 || r.halved || len(r.accepted) != 0 || err != nil && !d.stuck
	d.close(ctx, r, err, time.Since(start))
	return news
}

// waiting are the names that the round looks at besides those that changed.
func (d *Driver) waiting(due bool) []string {
	if !due {
		return nil
	}
	return slices.Concat(slices.Collect(maps.Keys(d.suspects)), slices.Collect(maps.Keys(d.refused)))
}

// write makes the round's transactions. An error is about all services.
func (d *Driver) write(ctx context.Context, r *round, due bool) error {
	var fresh, again []string
	for _, name := range r.names {
		if d.refused[name] != nil {
			again = append(again, name)
		} else if _, suspect := d.suspects[name]; !suspect {
			fresh = append(fresh, name)
		}
	}
	if r.full {
		left, err := d.replace(ctx, r)
		if err != nil {
			return err
		}
		fresh = left
	}
	// What nothing is known against comes first, so that it waits for nobody.
	if err := d.search(ctx, r, mostAttempts, d.changes(r, fresh)); err != nil {
		return err
	}
	if err := d.search(ctx, r, mostProbes, d.changes(r, again)); err != nil {
		return err
	}
	if !due {
		return nil
	}
	return d.retry(ctx, r)
}

// retry comes back to what waits since earlier rounds.
func (d *Driver) retry(ctx context.Context, r *round) error {
	parts := map[int][]string{}
	for _, name := range slices.Sorted(maps.Keys(d.suspects)) {
		parts[d.suspects[name]] = append(parts[d.suspects[name]], name)
	}
	var search, alone [][]dataplane.Change
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		search = append(search, d.changes(r, parts[part]))
	}
	if err := d.search(ctx, r, mostAttempts, search...); err != nil {
		return err
	}
	for _, name := range d.longestRefused(mostProbes) {
		if _, suspect := d.suspects[name]; !suspect && !slices.Contains(r.refused, name) {
			alone = append(alone, d.changes(r, []string{name}))
		}
	}
	if err := d.search(ctx, r, mostProbes, alone...); err != nil {
		return err
	}
	if len(r.accepted) != 0 { // so may the others be
		d.parts++
		for name := range d.refused {
			d.suspects[name] = d.parts
		}
	}
	return nil
}

// changes of what is written to what is desired. A name that needs none is done with.
func (d *Driver) changes(r *round, names []string) []dataplane.Change {
	var changes []dataplane.Change
	for _, name := range names {
		c := dataplane.Change{Old: d.written[name], New: r.desired[name]}
		if dataplane.Equal(c.Old, c.New) {
			d.settle(r, name)
			delete(r.triggers, name)
			continue
		}
		changes = append(changes, c)
	}
	return changes
}

// settle notes that nothing is to be done for a service any more.
func (d *Driver) settle(r *round, name string) {
	if d.refused[name] != nil && r.desired[name] != nil {
		r.accepted = append(r.accepted, name)
	}
	delete(d.refused, name)
	delete(d.suspects, name)
}

// observeLatency tells how long the services that this round wrote have waited. What was there when we started did not
// wait for us.
func (d *Driver) observeLatency(r *round, first bool) {
	if first && r.replaced {
		clear(r.triggers)
	}
	var names []string
	if r.replaced {
		names = slices.Collect(maps.Keys(r.triggers))
	} else {
		for _, c := range r.applied {
			names = append(names, c.Name())
		}
	}
	for _, name := range names {
		if dataplane.Equal(d.written[name], r.desired[name]) {
			d.metrics.observeLatency(r.triggers[name])
			delete(r.triggers, name)
		}
	}
}

// close says how the round ended.
func (d *Driver) close(ctx context.Context, r *round, err error, took time.Duration) {
	if err != nil {
		r.causes[causeOf(err)] = true
	}
	if r.attempts > 0 {
		d.metrics.observe(r, took)
	}
	d.metrics.refused.Set(float64(len(d.refused)))
	d.report(err)
	d.stuck = err != nil
	if err != nil {
		d.ledger.fail(r, err)
		return
	}
	failure := d.notWritten()
	if failure == nil {
		d.metrics.success.SetToCurrentTime()
	}
	d.ledger.close(r, failure, d.undecided())
	if d.replaced != nil {
		// A run that ends with its first state (--once) is not to leave that half done.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		d.replaced(ctx)
		d.replaced = nil
	}
}

// undecided is how many services wait that are not refused as far as we know.
func (d *Driver) undecided() (n int) {
	for name := range d.suspects {
		if d.refused[name] == nil {
			n++
		}
	}
	return n
}
