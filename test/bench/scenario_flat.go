// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/kpng/test/bench/report"
	"sigs.k8s.io/kpng/test/bench/usage"
)

const (
	flatSmall    = 100
	flatWatchers = 4
	flatRounds   = 9
)

// flatScenario measures what a change costs at two sizes, in turns, and then what the larger one holds.
func (b *bench) flatScenario(ctx context.Context) error {
	b.Heading("Cost of a change at %d and at %d Services x %d endpoints", flatSmall, b.flat, b.endpoints)
	b.Text("Synthetic source; %d watchers; %d rounds of %d changes at each size, in turns; medians of the rounds.\n", flatWatchers, flatRounds, b.changes)
	small, err := b.startFlat(ctx, flatSmall)
	if err != nil {
		return err
	}
	defer small.child.end()
	large, err := b.startFlat(ctx, b.flat)
	if err != nil {
		return err
	}
	defer large.child.end()
	for range flatRounds {
		for _, side := range []*flatSide{small, large} {
			if err := side.round(ctx, b.changes); err != nil {
				return err
			}
		}
	}
	b.Header("Services", "first sync of all", "server CPU a change", "change seen by all", "resident")
	for _, side := range []*flatSide{small, large} {
		if err := side.fleet.stop(); err != nil {
			return err
		}
		now, _ := usage.Resident(side.child.Pid())
		b.Row(side.fleet.world.services, report.MS(side.synced), report.MS(report.Percentile(side.cpu, 50)), report.MS(report.Percentile(side.seen, 50)), report.MB(now))
	}
	ratio := func(of func(*flatSide) []time.Duration) float64 {
		return report.Percentile(of(large), 50).Seconds() / report.Percentile(of(small), 50).Seconds()
	}
	factor := ratio(func(s *flatSide) []time.Duration { return s.cpu })
	b.Goal(factor <= 1.5, fmt.Sprintf("server CPU a change at %d Services against %d", b.flat, flatSmall), "factor 1.5", fmt.Sprintf("%.2f", factor))
	factor = ratio(func(s *flatSide) []time.Duration { return s.seen })
	b.Goal(factor <= 1.5, fmt.Sprintf("change seen by all at %d Services against %d", b.flat, flatSmall), "factor 1.5", fmt.Sprintf("%.2f", factor))
	return b.memory(large)
}

// flatSide is a synthetic server of one size and its watchers.
type flatSide struct {
	child     *synthetic
	fleet     *fleet
	synced    time.Duration
	cpu, seen []time.Duration // a change; of each round, of each change
	made      int
}

func (b *bench) startFlat(ctx context.Context, services int) (*flatSide, error) {
	child, err := startSynthetic(b.dir, services, b.endpoints)
	if err != nil {
		return nil, err
	}
	s := &flatSide{child: child, fleet: newFleet(newWorld(services, b.endpoints), child.socket)}
	s.fleet.add(flatWatchers, habit{})
	goal, start := s.fleet.aim(s.fleet.world.expected()), time.Now()
	s.fleet.start(ctx)
	if err := s.fleet.wait(ctx, goal, limit); err != nil {
		child.end()
		return nil, err
	}
	s.synced = goal.at.Sub(start)
	return s, s.round(ctx, warmUp)
}

func (s *flatSide) round(ctx context.Context, changes int) error {
	before := usage.CPU(s.child.Pid())
	var seen []time.Duration
	for range changes {
		s.made++
		state, total := s.fleet.world.toggle(s.made*37%s.fleet.world.services, s.made)
		goal, start := s.fleet.aim(total), time.Now()
		if err := s.child.apply(state); err != nil {
			return err
		}
		if err := s.fleet.wait(ctx, goal, limit); err != nil {
			return err
		}
		seen = append(seen, goal.at.Sub(start))
	}
	if changes > warmUp {
		s.cpu = append(s.cpu, (usage.CPU(s.child.Pid())-before)/time.Duration(changes))
		s.seen = append(s.seen, seen...)
	}
	return nil
}

// memory says what an endpoint costs, and what that is made of.
func (b *bench) memory(side *flatSide) error {
	h, err := side.child.heap()
	if err != nil {
		return err
	}
	w := side.fleet.world
	endpoints := w.services * w.endpoints
	// What a source says of an endpoint, as bytes of text.
	says := h.Key + h.Wire + len(podName(0, 0)) + len(nodeName(10)) + len("zone-a")
	b.Heading("Memory of %d endpoints in %d Services", endpoints, w.services)
	b.Text("%s of heap after a collection: %.0f bytes an endpoint, its share of its Service included. An endpoint says %d bytes:\n"+
		"its message on the wire %d, its key %d, its pod %d, its node %d, its zone %d (the last two are held once for all that\n"+
		"name them). The rest is structure.\n", report.MB(h.Bytes), float64(h.Bytes)/float64(endpoints), says,
		h.Wire, h.Key, len(podName(0, 0)), len(nodeName(10)), len("zone-a"))
	b.Header("allocated by", "bytes an endpoint")
	for _, name := range slices.SortedFunc(maps.Keys(h.By), func(x, y string) int { return h.By[y] - h.By[x] }) {
		if each := float64(h.By[name]) / float64(endpoints); each >= 1 {
			b.Row("`"+name+"`", fmt.Sprintf("%.0f", each))
		}
	}
	perMillion := float64(h.Bytes) / (float64(endpoints) * float64(says)) // MB for a million bytes
	b.Goal(perMillion <= 50, "heap for a million bytes that endpoints say", "50 MB",
		fmt.Sprintf("%.1f MB (%.0f bytes an endpoint)", perMillion, float64(h.Bytes)/float64(endpoints)))
	return nil
}
