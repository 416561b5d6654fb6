// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kpng/test/bench/report"
)

// stage is a size that the API server is filled up to, and what is done then.
type stage struct {
	services int
	measure  []proxy
	traffic  bool // have nodes programmed to send traffic through
}

const (
	few, many, most = 50, 5_000, 20_000
	oneService      = 1
	manyForTraffic  = 10_000
)

func (b *bench) stages() []stage {
	stages := []stage{
		{services: oneService, traffic: true},
		{services: few, measure: []proxy{{kubeProxy, nftables}, {kpng, nftables}}},
		{services: 100, measure: []proxy{{kubeProxy, iptablesNFT}, {kpng, iptablesNFT}}},
		{services: 1_000, measure: []proxy{{kubeProxy, iptablesNFT}, {kpng, iptablesNFT}}},
		{services: many, measure: []proxy{{kubeProxy, nftables}, {kpng, nftables}}},
		{services: manyForTraffic, traffic: true},
	}
	if b.large {
		stages[4].measure = append(stages[4].measure, proxy{kpng, iptablesNFT})
		stages = append(stages, stage{services: most, measure: []proxy{{kpng, nftables}}})
	}
	for i := range stages {
		stages[i].measure = slices.DeleteFunc(stages[i].measure, func(p proxy) bool { return !b.wants(control) || b.unwanted(p.dataplane) })
	}
	return slices.DeleteFunc(stages, func(s stage) bool { return len(s.measure) == 0 && (!s.traffic || !b.wants(traffic)) })
}

// result is what was measured of a proxy at a size.
type result struct {
	proxy
	services int
	figures
}

// withAPI runs the parts for which kube-proxy and kpng follow a real API server.
func (b *bench) withAPI(ctx context.Context) error {
	api, err := startAPISource(ctx, b.kubernetes, b.dir+"/cluster")
	if err != nil {
		return err
	}
	defer func() { _ = api.Stop() }() // it kills, which does not fail
	b.before()
	t := &trafficLab{}
	defer t.close()
	if b.wants(control) {
		b.controlHeader()
	}
	var results []result
	for _, s := range b.stages() {
		began := time.Now()
		if err := api.grow(ctx, s.services); err != nil {
			return fmt.Errorf("filling the API server with %d Services: %w", s.services, err)
		}
		b.log("%d Services on the API server after %v", s.services, time.Since(began).Round(time.Second))
		for _, p := range s.measure {
			fig, err := b.measure(ctx, p, api, s.services)
			switch {
			case err != nil && p.kind == kubeProxy && ctx.Err() == nil: // not ours to judge
				b.log("%v", err)
				fig.failed = "failed"
			case err != nil:
				return fmt.Errorf("%d Services: %w", s.services, err)
			}
			r := result{p, s.services, fig}
			results = append(results, r)
			b.row(r.proxy, r)
		}
		if s.traffic {
			if err := t.program(ctx, b, api, s.services); err != nil {
				return err
			}
		}
	}
	if b.wants(control) {
		b.ratios(results)
	}
	if b.wants(traffic) {
		return b.traffic(ctx, t)
	}
	return nil
}

func (b *bench) controlHeader() {
	b.Heading("Following the API server, %d endpoints a Service", endpoints)
	b.Text("First sync: from the start of the process until a packet to the last Service arrives. A change is an update of an\n"+
		"EndpointSlice by which one endpoint goes or comes back; it is timed from when a watch of the API server tells of it until\n"+
		"the kernel has it, p50 / p99 of up to %d, one after the other. CPU includes the programs that the proxy runs.\n", b.changeCount)
	b.Header("proxy", "Services", "first sync", "change", "changes", "CPU a change", "resident (peak)")
}

// row is a line of the tables of what follows: who, and what was measured of it.
func (b *bench) row(who any, r result) {
	if r.failed != "" {
		b.Row(who, r.services, r.failed, "", "", "", "")
		return
	}
	b.Row(who, r.services, report.MS(r.firstSync), report.Both(r.seen), len(r.seen), report.MS(r.cpu),
		report.MB(r.resident)+" ("+report.MB(r.peak)+")")
}

// ratios prints what ours costs against kube-proxy, and the goals that are about the whole of it.
func (b *bench) ratios(results []result) {
	b.Heading("kpng to kube-proxy: how many times less")
	b.Header("dataplane", "Services", "first sync", "change p50", "change p99", "CPU a change", "resident")
	for _, ours := range results {
		i := slices.IndexFunc(results, func(r result) bool {
			return r.kind == kubeProxy && ours.kind != kubeProxy && r.dataplane == ours.dataplane && r.services == ours.services
		})
		if i < 0 || ours.failed+results[i].failed != "" {
			continue
		}
		theirs := results[i]
		b.Row(ours.dataplane, ours.services, times(theirs.firstSync, ours.firstSync),
			times(report.Percentile(theirs.seen, 50), report.Percentile(ours.seen, 50)),
			times(report.Percentile(theirs.seen, 99), report.Percentile(ours.seen, 99)),
			times(theirs.cpu, ours.cpu), times(theirs.resident, ours.resident))
	}
	for _, r := range results {
		if r.kind == kpng && r.dataplane == nftables && r.services == many {
			b.syncGoal(r)
		}
	}
}

// syncGoal is judged for a program that is asked for its first state, whatever it comes from.
func (b *bench) syncGoal(r result) {
	const most = 2 * time.Second
	b.Goal(r.failed == "" && r.firstSync <= most, fmt.Sprintf("%s: first sync of %d x %d", r.proxy, r.services, endpoints),
		report.MS(most), or(r.failed, report.MS(r.firstSync)))
}

// or is why there is no figure, or else the figure.
func or(failed, figure string) string {
	if failed != "" {
		return failed
	}
	return figure
}

// times says how many times more the first is than the second.
func times[T ~int | ~int64](theirs, ours T) string {
	return fmt.Sprintf("%.1f", float64(theirs)/float64(ours))
}

func (b *bench) wants(part string) bool { return slices.Contains(b.parts, part) }

func (b *bench) unwanted(d dataplane) bool { return b.only != "" && d != b.only }

// log tells the person who waits how far it is.
func (b *bench) log(format string, args ...any) {
	fmt.Fprintln(b.progress, "("+strings.TrimSpace(fmt.Sprintf(format, args...))+")")
}
