// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/kpng/test/bench/report"
)

// target is a line of the table of goals.
type target struct {
	syncWall, syncCPU time.Duration
	p50, p99          time.Duration
	cpu               time.Duration
	resident          int
}

const millisecond = time.Millisecond

var targets = map[int]target{
	1:    {60 * millisecond, 80 * millisecond, 3 * millisecond, 10 * millisecond, 500 * time.Microsecond, 60e6},
	100:  {1500 * millisecond, 2 * time.Second, 10 * millisecond, 40 * millisecond, 10 * millisecond, 120e6},
	1000: {15 * time.Second, 20 * time.Second, 60 * millisecond, 200 * millisecond, 80 * millisecond, 400e6},
}

// table measures kpng on the API server with more and more watchers. Each run has a kpng of its own.
func (b *bench) table(ctx context.Context) error {
	start := time.Now()
	if err := b.withAPI(ctx); err != nil {
		return err
	}
	b.Heading("%d Services x %d endpoints, one endpoint changed at a time", b.services, b.endpoints)
	b.Text("A real kube-apiserver, filled in %v. A change is an update of an EndpointSlice by which one endpoint gets ready or\n"+
		"not ready; %d of them in each run. Times are p50 / p99.\n", time.Since(start).Round(time.Second), b.changes)
	tableHeader(b.Report)
	for _, n := range b.watchers {
		fig, err := b.direct(ctx, n)
		if err != nil {
			return fmt.Errorf("%d watchers: %w", n, err)
		}
		b.figuresRow(fmt.Sprint(n), fig)
		if t, ok := targets[n]; ok && b.services == 1000 {
			b.tableGoals(t, fig)
		}
	}
	return nil
}

// rehearsals is how many first syncs of few watchers are made.
const rehearsals = 5

// direct measures one kpng with n watchers.
func (b *bench) direct(ctx context.Context, n int) (figures, error) {
	k, err := b.startKpng(ctx, fmt.Sprintf("table-%d", n), b.fromKube()...)
	if err != nil {
		return figures{}, err
	}
	defer k.Stop(limit)
	fleetOf := func() *fleet {
		f := newFleet(b.world, k.socket)
		f.add(n, habit{})
		return f
	}
	few := n <= 10
	var wall, used time.Duration
	if few {
		if wall, used, err = rehearse(ctx, rehearsals, fleetOf, k.Pid()); err != nil {
			return figures{}, err
		}
	}
	f := fleetOf()
	fig, err := b.measure(ctx, f, k)
	if err != nil {
		return fig, fmt.Errorf("%w\n%s", err, k.Stderr.String())
	}
	if few {
		fig.syncWall, fig.syncCPU = wall, used
	}
	return fig, f.stop()
}

func tableHeader(r *report.Report) {
	r.Header("watchers", "first sync: wall / server CPU", "change seen by all", "of that, the API server's own", "beyond it",
		"server CPU a change", "resident (peak)")
}

func (b *bench) figuresRow(name string, fig figures) {
	b.Row(name, report.MS(fig.syncWall)+" / "+report.MS(fig.syncCPU), report.Both(fig.seen), report.Both(fig.direct), report.Both(fig.beyond),
		report.MS(fig.cpu), report.MB(fig.resident)+" ("+report.MB(fig.peak)+")")
}

func (b *bench) tableGoals(t target, fig figures) {
	who := fmt.Sprintf("%d watchers", fig.watchers)
	if fig.watchers == 1 {
		who = "1 watcher"
	}
	p50, p99 := report.Percentile(fig.beyond, 50), report.Percentile(fig.beyond, 99)
	b.Goal(fig.syncWall <= t.syncWall && fig.syncCPU <= t.syncCPU, who+": first sync, wall / server CPU",
		report.MS(t.syncWall)+" / "+report.MS(t.syncCPU), report.MS(fig.syncWall)+" / "+report.MS(fig.syncCPU))
	b.Goal(p50 <= t.p50 && p99 <= t.p99, who+": change seen by all beyond the API server's delay, p50 / p99",
		report.MS(t.p50)+" / "+report.MS(t.p99), report.MS(p50)+" / "+report.MS(p99))
	b.Goal(fig.cpu <= t.cpu, who+": server CPU a change", report.MS(t.cpu), report.MS(fig.cpu))
	b.Goal(fig.resident <= t.resident, who+": resident", report.MB(t.resident), report.MB(fig.resident))
}
