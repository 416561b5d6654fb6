// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// replace makes the first transaction of a full round. Until it succeeds the kernel does what an earlier run wrote, so
// it has to be as complete as can be: whatever it leaves out is not served from then on. It returns the names that are to
// be written at once because nothing is known against them.
func (d *Driver) replace(ctx context.Context, r *round) ([]string, error) {
	before := d.keptBefore()
	for {
		start := time.Now()
		state := d.lastGood(r, before)
		err := d.replaceBy(ctx, r, state)
		if err == nil {
			return d.unknown(r), nil
		}
		took := time.Since(start)
		if ctx.Err() != nil || ofAll(err) || len(state) == 0 {
			return nil, err
		}
		names, all := d.wouldRefuse(ctx, values(state))
		if all != nil {
			return nil, errors.Join(err, all)
		}
		if !d.leaveOut(r, names, state, before, err) || r.attempts == mostAttempts {
			return d.exclude(ctx, r, state, took)
		}
	}
}

// leaveOut notes that services of the state are refused, and tells whether there are any. Those that have another good state
// before get that one; if that is what was refused, none.
func (d *Driver) leaveOut(r *round, names map[string]bool, state, before map[string]*dataplane.Service, err error) (found bool) {
	for name := range names {
		s := state[name]
		if s == nil {
			continue
		}
		found = true
		if s != r.desired[name] {
			delete(before, name)
			continue
		}
		d.refuse(r, name, err)
		if d.written[name] != nil && d.written[name] != s {
			before[name] = d.written[name]
		}
	}
	return found
}

// lastGood is what is desired, but for services that are not to be tried now: they stay as they were before, if that
// is known and leaves to the others what is theirs.
func (d *Driver) lastGood(r *round, before map[string]*dataplane.Service) map[string]*dataplane.Service {
	state := maps.Clone(r.desired)
	for name := range d.refused {
		delete(state, name)
	}
	for name := range d.suspects {
		delete(state, name)
	}
	if len(before) == 0 {
		return state
	}
	taken := map[dataplane.Key]bool{}
	for _, s := range state {
		for i := range s.Frontends {
			taken[s.Frontends[i].Key()] = true
		}
	}
	for name, s := range before {
		if r.desired[name] != nil && !slices.ContainsFunc(s.Frontends, func(f dataplane.Frontend) bool { return taken[f.Key()] }) {
			state[name] = s
		}
	}
	return state
}

// unknown are the names that were not written, and not refused as far as we know.
func (d *Driver) unknown(r *round) []string {
	var names []string
	for name := range r.desired {
		_, suspect := d.suspects[name]
		if d.written[name] == nil && d.refused[name] == nil && !suspect {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// replaceBy makes one transaction.
func (d *Driver) replaceBy(ctx context.Context, r *round, state map[string]*dataplane.Service) error {
	r.attempts++
	if err := d.writer.Replace(ctx, values(state)); err != nil {
		return err
	}
	d.metrics.wrote(d.writer)
	d.written, d.altered, r.replaced = state, false, true
	return nil
}

// exclude is for writers that do not know which service is refused. It leaves out a few of those that it may be, each
// time others: when the kernel takes the rest, only those few are missing, and only until they are applied, which is next.
// How few follows from the time that an attempt takes: one by one, where that is quick. When more of them are refused,
// nothing is left but to begin with nothing and apply all, which interrupts what an earlier run served.
func (d *Driver) exclude(ctx context.Context, r *round, state map[string]*dataplane.Service, attempt time.Duration) ([]string, error) {
	attempts := d.exclusions(attempt)
	part := (len(state) + attempts - 1) / attempts
	for names := range slices.Chunk(slices.Sorted(maps.Keys(state)), part) {
		rest := maps.Clone(state)
		for _, name := range names {
			delete(rest, name)
		}
		if err := d.replaceBy(ctx, r, rest); err == nil {
			return d.unknown(r), nil
		} else if ctx.Err() != nil || ofAll(err) {
			return nil, err
		}
	}
	klog.InfoS("The kernel refuses several services, and it is not known which; beginning with none", "services", len(state))
	if err := d.replaceBy(ctx, r, map[string]*dataplane.Service{}); err != nil {
		return nil, err
	}
	return d.unknown(r), nil
}

// exclusions is how many attempts there may be, each of which takes so long.
func (d *Driver) exclusions(attempt time.Duration) int {
	return min(max(int(d.replaceTime/max(attempt, 1)), fewestExclusions), mostExclusions)
}
