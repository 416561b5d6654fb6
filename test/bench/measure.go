// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/kpng/test/bench/apiserver"
	"sigs.k8s.io/kpng/test/bench/report"
	"sigs.k8s.io/kpng/test/bench/usage"
)

// figures are what is measured of some servers with a fleet at them.
type figures struct {
	watchers       int
	syncWall       time.Duration
	syncCPU        time.Duration
	seen           []time.Duration // from the request to the API server until all watchers hold the change
	direct         []time.Duration // until a direct watch of the API server told of it
	beyond         []time.Duration // the difference of the two
	cpu            time.Duration   // for a change
	resident, peak int
}

// warmUp is how many changes are made before those that are measured.
const warmUp = 5

// limit is the longest that anything is waited for.
const limit = time.Minute

// measure starts a fleet and measures its first sync and some changes, made one at a time through the API server.
func (b *bench) measure(ctx context.Context, f *fleet, servers ...*kpng) (fig figures, err error) {
	var pids []int
	for _, k := range servers {
		pids = append(pids, k.Pid())
	}
	fig.watchers = len(f.watchers)
	profiled := b.profile(ctx, servers[0], fmt.Sprintf("%d-of-%d-sync", fig.watchers, len(servers)), 2*time.Second)
	if fig.syncWall, fig.syncCPU, err = firstSync(ctx, f, pids); err != nil {
		return fig, err
	}
	profiled()
	profiled = b.profile(ctx, servers[0], fmt.Sprintf("%d-of-%d-changes", fig.watchers, len(servers)), time.Duration(b.changes)*10*time.Millisecond)
	if err := b.measureChanges(ctx, f, &fig, pids); err != nil {
		return fig, err
	}
	profiled()
	for _, pid := range pids {
		now, peak := usage.Resident(pid)
		fig.resident += now
		fig.peak += peak
	}
	return fig, nil
}

// firstSync starts a fleet and waits until all hold the state.
func firstSync(ctx context.Context, f *fleet, pids []int) (wall, used time.Duration, err error) {
	before, start := cpuOf(pids), time.Now()
	synced := f.aim(f.world.expected())
	f.start(ctx)
	if err := f.wait(ctx, synced, limit); err != nil {
		return 0, 0, err
	}
	return synced.at.Sub(start), cpuOf(pids) - before, nil
}

// rehearse lets fleets come and go, and returns the medians of their first syncs: a single one of few watchers is over
// so soon that anything else on the machine decides how long it takes.
func rehearse(ctx context.Context, times int, newFleet func() *fleet, pid int) (wall, used time.Duration, err error) {
	var walls, useds []time.Duration
	for range times {
		f := newFleet()
		wall, used, err := firstSync(ctx, f, []int{pid})
		if err := errors.Join(err, f.stop()); err != nil {
			return 0, 0, err
		}
		walls, useds = append(walls, wall), append(useds, used)
	}
	return report.Percentile(walls, 50), report.Percentile(useds, 50), nil
}

func (b *bench) measureChanges(ctx context.Context, f *fleet, fig *figures, pids []int) error {
	watch, err := b.api.watch(ctx)
	if err != nil {
		return err
	}
	defer watch.Stop()
	var before time.Duration
	for n := range warmUp + b.changes {
		if n == warmUp {
			before = cpuOf(pids)
		}
		seen, direct, err := b.oneChange(ctx, f, watch, n)
		if err != nil {
			return fmt.Errorf("change %d: %w", n, err)
		}
		if n >= warmUp {
			fig.seen, fig.direct, fig.beyond = append(fig.seen, seen), append(fig.direct, direct), append(fig.beyond, seen-direct)
		}
	}
	fig.cpu = (cpuOf(pids) - before) / time.Duration(b.changes)
	f.world.quiet()
	return nil
}

// oneChange makes a change and returns when all watchers, and when the direct watch, had seen it.
func (b *bench) oneChange(ctx context.Context, f *fleet, watch *apiserver.Watch, n int) (seen, direct time.Duration, err error) {
	state, total := f.world.toggle((n*37)%f.world.services, n)
	goal := f.aim(total)
	start := time.Now()
	if err := b.api.apply(ctx, f.world, state); err != nil {
		return 0, 0, err
	}
	select {
	case at := <-watch.Events:
		direct = at.Sub(start)
	case <-time.After(limit):
		return 0, 0, fmt.Errorf("the API server has told nobody within %v", limit)
	}
	if err := f.wait(ctx, goal, limit); err != nil {
		return 0, 0, err
	}
	// Let the rest of the work for this change be done.
	time.Sleep(2 * time.Millisecond)
	return goal.at.Sub(start), direct, nil
}

func cpuOf(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		sum += usage.CPU(pid)
	}
	return sum
}
