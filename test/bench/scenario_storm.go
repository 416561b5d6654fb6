// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"sigs.k8s.io/kpng/test/bench/report"
	"sigs.k8s.io/kpng/test/bench/usage"
)

const (
	stormWatchers, stormSlow, stormRestless = 100, 10, 5
	stormWorkers                            = 16
)

// stormScenario storms through the API server, as fast as that lets it, and at the full rate from the synthetic source.
func (b *bench) stormScenario(ctx context.Context) error {
	b.Heading("Storm: %d changes a second to %d watchers, %d of them reading an op a second, %d reconnecting at random",
		b.stormRate, stormWatchers, stormSlow, stormRestless)
	b.Text("%d Services x %d endpoints; a change is a commit of up to 20 ops. Every op, and every state at a Sync, is checked:\n"+
		"no orphan, no torn state.\n", b.services, b.endpoints)
	b.Header("through", "changes", "a second", "healthy watchers converged after the last", "server CPU", "a change",
		"change sets sent", "ops sent", "reconnections", "resident in the middle and the last third")
	for _, source := range []func(context.Context) (*stormSource, error){b.stormFromAPI, b.stormFromStore} {
		s, err := source(ctx)
		if err != nil {
			return err
		}
		if err := b.storm(ctx, s); err != nil {
			return fmt.Errorf("through %s: %w", s.name, err)
		}
	}
	return nil
}

// storm makes many changes while some watchers read slowly and some come and go. A change moves all endpoints of a
// Service to another port, or takes one away: that a watcher holds endpoints of two ports at a Sync is a torn state.
func (b *bench) storm(ctx context.Context, s *stormSource) error {
	defer s.end()
	f := newFleet(s.world, s.socket)
	f.add(stormWatchers-stormSlow-stormRestless, habit{})
	f.add(stormSlow, habit{pause: time.Second})
	f.add(stormRestless, habit{restless: true})
	synced := f.aim(s.world.expected())
	f.start(ctx)
	if err := f.wait(ctx, synced, limit); err != nil {
		return err
	}

	before, start := usage.CPU(s.pid), time.Now()
	stop := churn(ctx, b.stormRate, stormWorkers, s.change)
	memory := sampleMemory(ctx, s.pid, b.stormTime)
	made, err := stop()
	if err != nil {
		return err
	}
	took, used := time.Since(start), usage.CPU(s.pid)-before
	converged, err := f.converge(ctx, limit)
	if err != nil {
		return err
	}
	if err := f.stop(); err != nil {
		return err
	}
	s.world.quiet()
	b.stormReport(s, f, made, took, used, converged, memory)
	return nil
}

// stormSource is what a storm goes through.
type stormSource struct {
	name   string
	world  *world
	socket string
	pid    int
	apply  func(ctx context.Context, s serviceState) error
	end    func()
}

func (b *bench) stormFromStore(context.Context) (*stormSource, error) {
	child, err := startSynthetic(b.dir, b.services, b.endpoints)
	if err != nil {
		return nil, err
	}
	return &stormSource{
		name: "the synthetic source", world: newWorld(b.services, b.endpoints), socket: child.socket, pid: child.Pid(),
		apply: func(_ context.Context, s serviceState) error { return child.apply(s) }, end: child.end,
	}, nil
}

func (b *bench) stormFromAPI(ctx context.Context) (*stormSource, error) {
	if err := b.withAPI(ctx); err != nil {
		return nil, err
	}
	k, err := b.startKpng(ctx, "storm", b.fromKube()...)
	if err != nil {
		return nil, err
	}
	profiled := b.profile(ctx, k, "storm", b.stormTime)
	return &stormSource{
		name: "a real API server", world: b.world, socket: k.socket, pid: k.Pid(),
		apply: func(ctx context.Context, s serviceState) error { return b.api.apply(ctx, b.world, s) },
		end:   func() { profiled(); k.Stop(limit) },
	}, nil
}

// change changes a Service that no other worker changes, so that changes of one come in order.
func (s *stormSource) change(ctx context.Context, worker int) error {
	service := rand.N(s.world.services/stormWorkers)*stormWorkers + worker
	next := s.world.state(service)
	if rand.N(2) == 0 {
		next.Port = basePort + rand.N(1000)
	} else {
		next.Down = rand.N(s.world.endpoints+1) - 1
	}
	s.world.change(next)
	return s.apply(ctx, next)
}

// sampleMemory notes what a process has resident, ten times a second.
func sampleMemory(ctx context.Context, pid int, d time.Duration) (samples []int) {
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; sleep(ctx, 100*time.Millisecond) {
		now, _ := usage.Resident(pid)
		samples = append(samples, now)
	}
	return samples
}

// most is the largest of some samples.
func most(samples []int) (top int) {
	for _, n := range samples {
		top = max(top, n)
	}
	return top
}

func (b *bench) stormReport(s *stormSource, f *fleet, made int, took, used, converged time.Duration, memory []int) {
	third := len(memory) / 3
	early, late := most(memory[third:2*third]), most(memory[2*third:])
	flat := float64(late) <= 1.1*float64(early)+2e6
	b.Row(s.name, made, fmt.Sprintf("%.0f", float64(made)/took.Seconds()), report.MS(converged),
		fmt.Sprintf("%.0f %%", 100*used.Seconds()/took.Seconds()), report.MS(used/time.Duration(max(made, 1))),
		f.sum(func(w *watcher) int64 { return w.syncs.Load() }), f.sum(func(w *watcher) int64 { return w.ops.Load() }),
		f.sum(func(w *watcher) int64 { return w.connects.Load() })-stormWatchers, report.MB(early)+", "+report.MB(late))
	what := fmt.Sprintf("storm of %.0f changes a second for %.0f s through %s", float64(made)/took.Seconds(), took.Seconds(), s.name)
	b.Goal(converged <= time.Second, what+": healthy watchers converge after the last change", "1 s", report.MS(converged))
	b.Goal(flat, what+": memory flat", "last third within 10 % of the middle", report.MB(early)+", then "+report.MB(late))
	b.Goal(true, what+": no orphan, no torn state", "0", "0")
}
