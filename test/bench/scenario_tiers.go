// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/kpng/test/bench/report"
)

// tiersScenario measures watchers of many kpngs that follow one central kpng, and as many watchers of one kpng.
func (b *bench) tiersScenario(ctx context.Context) error {
	if err := b.withAPI(ctx); err != nil {
		return err
	}
	n := b.tiers * b.tierWatchers
	one, err := b.direct(ctx, n)
	if err != nil {
		return fmt.Errorf("one tier: %w", err)
	}
	two, err := b.twoTiers(ctx)
	if err != nil {
		return fmt.Errorf("two tiers: %w", err)
	}
	b.Heading("Two tiers: a central kpng, %d kpngs that follow it, %d watchers of each", b.tiers, b.tierWatchers)
	b.Text("Server CPU and memory of the second line are of all %d kpng processes together.\n", b.tiers+1)
	tableHeader(b.Report)
	b.figuresRow(fmt.Sprintf("%d of one kpng", n), one)
	b.figuresRow(fmt.Sprintf("%d of %d", n, b.tiers), two)
	if b.tiers < 20 || b.tierWatchers < 50 {
		return nil // the goal is about more; here the second hop is most of the way
	}
	ratio := func(p int) float64 {
		return report.Percentile(two.seen, p).Seconds() / report.Percentile(one.seen, p).Seconds()
	}
	b.Goal(ratio(50) <= 2 && ratio(99) <= 2, fmt.Sprintf("two tiers, %d x %d watchers: change seen by all, end to end, p50 / p99, against one tier", b.tiers, b.tierWatchers),
		"factor 2 / 2", fmt.Sprintf("%.2f / %.2f", ratio(50), ratio(99)))
	sync := two.syncWall.Seconds() / one.syncWall.Seconds()
	b.Goal(sync <= 2, "two tiers: first sync of the watchers, against one tier", "factor 2", fmt.Sprintf("%.2f", sync))
	return nil
}

func (b *bench) twoTiers(ctx context.Context) (figures, error) {
	central, err := b.startKpng(ctx, "central", b.fromKube()...)
	if err != nil {
		return figures{}, err
	}
	defer central.Stop(limit)
	all := []*kpng{central}
	var sockets []string
	for i := range b.tiers {
		k, err := b.startKpng(ctx, fmt.Sprintf("node-%d", i), "api", "--api=unix://"+central.socket)
		if err != nil {
			return figures{}, err
		}
		defer k.Stop(limit)
		all = append(all, k)
		sockets = append(sockets, k.socket)
	}
	f := newFleet(b.world, "")
	f.socket = func(i int) string { return sockets[i%len(sockets)] }
	f.add(b.tiers*b.tierWatchers, habit{})
	fig, err := b.measure(ctx, f, all...)
	if err != nil {
		return fig, err
	}
	return fig, f.stop()
}
