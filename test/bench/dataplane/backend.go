// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/kpng/test/bench/report"
)

// backendPart measures the backend alone, behind kpng's own server in this process.
func (b *bench) backendPart(ctx context.Context) error {
	b.Heading("kpng-nat alone, %d endpoints a Service", endpoints)
	b.Text("Behind kpng's store and server in another process, without an API server. A change is timed from before it is committed to\n" +
		"the store until the kernel has it: the server's work and the stream are in it.\n")
	b.Header("dataplane", "Services", "first sync", "change", "changes", "CPU a change", "resident (peak)")
	at := map[int]figures{}
	for _, s := range b.backendSizes() {
		fig, err := b.alone(ctx, proxy{kpngNat, s.dataplane}, s.services)
		if err != nil {
			return err
		}
		r := result{proxy{kpngNat, s.dataplane}, s.services, fig}
		b.row(r.dataplane, r)
		if s.dataplane == nftables {
			at[s.services] = fig
		}
		if s.dataplane == nftables && s.services == many {
			b.aloneGoals(r)
		}
	}
	if !b.unwanted(nftables) {
		b.flatGoal(at)
	}
	return nil
}

// flatGoal is about what a change costs at every size.
func (b *bench) flatGoal(at map[int]figures) {
	var medians []time.Duration
	for _, size := range []int{few, many, most} {
		if at[size].failed != "" {
			b.Goal(false, flatGoalName, "factor 2", fmt.Sprintf("%d: %s", size, at[size].failed))
			return
		}
		medians = append(medians, report.Percentile(at[size].seen, 50))
	}
	factor := slices.Max(medians).Seconds() / slices.Min(medians).Seconds()
	b.Goal(factor <= 2, flatGoalName, "factor 2", fmt.Sprintf("%.2f", factor))
}

const flatGoalName = "kpng-nat, nftables: a change at 50, 5,000 and 20,000 Services, slowest to fastest"

type backendSize struct {
	dataplane dataplane
	services  int
}

func (b *bench) backendSizes() []backendSize {
	sizes := []backendSize{
		{nftables, few}, {nftables, many}, {nftables, most},
		{iptablesNFT, 100}, {iptablesNFT, 1_000}, {iptablesLegacy, 100}, {iptablesLegacy, 1_000},
	}
	if b.large {
		sizes = append(sizes, backendSize{iptablesNFT, many}, backendSize{iptablesLegacy, many})
	}
	return slices.DeleteFunc(sizes, func(s backendSize) bool { return b.unwanted(s.dataplane) })
}

func (b *bench) alone(ctx context.Context, p proxy, services int) (fig figures, err error) {
	from, err := startStoreSource(ctx, b.dir, services)
	if err != nil {
		return fig, err
	}
	defer func() { err = errors.Join(err, from.stop()) }()
	return b.measure(ctx, p, from, services)
}

func (b *bench) aloneGoals(r result) {
	b.syncGoal(r)
	const half, nearlyAll, memory = 5 * time.Millisecond, 20 * time.Millisecond, 100e6
	p50, p99 := report.Percentile(r.seen, 50), report.Percentile(r.seen, 99)
	name := fmt.Sprintf("%s, %d x %d", r.proxy, r.services, endpoints)
	b.Goal(r.failed == "" && p50 <= half && p99 <= nearlyAll, name+": a change, p50 / p99", "5 / 20 ms", or(r.failed, report.Both(r.seen)))
	b.Goal(r.failed == "" && r.resident <= memory, name+": resident", report.MB(memory), or(r.failed, report.MB(r.resident)))
}
