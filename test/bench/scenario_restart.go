// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/test/bench/report"
	"sigs.k8s.io/kpng/test/bench/usage"
)

// restart kills kpng and starts it anew under many watchers. A backend on package client watches too: it must be told
// what it missed, and nothing else.
func (b *bench) restart(ctx context.Context) error {
	if err := b.withAPI(ctx); err != nil {
		return err
	}
	k, err := b.startKpng(ctx, "restart", b.fromKube()...)
	if err != nil {
		return err
	}
	defer func() { k.Stop(limit) }()
	f := newFleet(b.world, k.socket)
	f.add(b.reconnecting, habit{retry: true})
	synced := f.aim(b.world.expected())
	f.start(ctx)
	backend := startRecorder(ctx, k.socket)
	if err := errors.Join(f.wait(ctx, synced, limit), backend.await(b.services)); err != nil {
		return err
	}
	before, err := b.api.requests(ctx)
	if err != nil {
		return err
	}

	k.Kill()
	killed := time.Now()
	missed, _ := b.world.toggle(7, 3)
	if err := b.api.apply(ctx, b.world, missed); err != nil {
		return err
	}
	started := time.Now()
	if k, err = b.startKpng(ctx, "restart", b.fromKube()...); err != nil {
		return err
	}
	ready := time.Since(started)
	_, err = f.converge(ctx, limit)
	converged := time.Now()
	if err := errors.Join(err, backend.await(b.services+1)); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // would a flap come, it would come now
	after, err := b.api.requests(ctx)
	if err != nil {
		return err
	}
	flap := backend.stop(b.services, missed)
	b.Heading("Restart: kpng killed under %d watchers", b.reconnecting)
	b.Header("kpng in sync after its start", "all watchers in sync after the start", "after the kill", "server CPU", "resident (peak)",
		"lists and watches asked of the API server", "told to a backend that missed one change")
	now, peak := usage.Resident(k.Pid())
	b.Row(report.MS(ready), report.MS(converged.Sub(started)), report.MS(converged.Sub(killed)), report.MS(usage.CPU(k.Pid())), report.MB(now)+" ("+report.MB(peak)+")", after-before, backend.told())
	b.Goal(converged.Sub(started) <= 20*time.Second, fmt.Sprintf("%d watchers reconnecting at once: all in sync", b.reconnecting), "20 s", report.MS(converged.Sub(started)))
	b.Goal(after-before <= 12, "restart: requests on the API server, whatever the number of watchers", "no stampede", fmt.Sprint(after-before))
	b.Goal(flap == nil, "restart: a client that was in sync is given a difference", "1 change", backend.told())
	b.world.quiet()
	return errors.Join(f.stop(), flap)
}

// recorder is a backend on package client that notes what it is told.
type recorder struct {
	cancel context.CancelFunc
	done   chan error

	mu   sync.Mutex
	seen []string
}

func startRecorder(ctx context.Context, socket string) *recorder {
	r := &recorder{done: make(chan error, 1)}
	ctx, r.cancel = context.WithCancel(ctx)
	sink := changes.New(&localsink.Config{NodeName: nodeName(0)}, r.take)
	go func() { r.done <- newRunner(socket).Run(ctx, sink) }()
	return r
}

func newRunner(socket string) *client.Runner {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	runner := &client.Runner{}
	runner.BindFlags(flags)
	if err := flags.Set("api", "unix://"+socket); err != nil {
		panic(err) // --api takes any text
	}
	return runner
}

func (r *recorder) take(all []changes.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range all {
		r.seen = append(r.seen, fmt.Sprintf("%s %s (%d endpoints)", c.Op, c.Item.Service.GetName(), len(c.Item.Endpoints)))
	}
	return nil
}

// await waits until n changes have been told.
func (r *recorder) await(n int) error {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		r.mu.Lock()
		got := len(r.seen)
		r.mu.Unlock()
		if got >= n {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the backend was told %d changes of %d", got, n)
		}
	}
}

// stop ends the backend. It returns an error when it was told anything but the whole state and then the change missed.
func (r *recorder) stop(services int, missed serviceState) error {
	r.cancel()
	err := <-r.done
	want := fmt.Sprintf("set %s ", serviceName(missed.Service))
	if extra := r.seen[services:]; len(extra) != 1 || !strings.HasPrefix(extra[0], want) {
		err = errors.Join(err, fmt.Errorf("after the restart the backend was told %d changes, want 1 (%s): %.200q", len(extra), want, extra))
	}
	r.seen = r.seen[services:]
	return err
}

func (r *recorder) told() string { return strings.Join(r.seen[:min(3, len(r.seen))], ", ") }
