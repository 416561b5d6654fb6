// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

const (
	firstRetry = 500 * time.Millisecond
	mostRetry  = 30 * time.Second
	checkEvery = 20 * time.Second
)

// flows removes the flows of connections that a change made wrong: package conntrack, or a test.
type flows interface {
	Clean(ctx context.Context, changes []dataplane.Change) (int, error)
	CleanAll(ctx context.Context, services []*dataplane.Service) (int, error)
}

// Driver has a writer make the kernel follow. Its life:
//
//  1. newDriver, and start with a writer.
//  2. Update, with the first whole state, makes that replace everything that is there; later ones are changes. It
//     returns at once: changes that come while the kernel is written wait, one for a service.
//  3. Stop, when no more changes come, lets the writing under way end.
type Driver struct {
	writer   dataplane.Writer
	replaced func(context.Context) // called once, when everything was written for the first time
	flows    flows
	check    time.Duration

	mu      sync.Mutex
	desired map[string]*dataplane.Service
	pending map[string]bool // names of services to be written
	failure error           // of the last attempt; nil: the kernel is as desired

	kick   chan struct{}
	done   chan struct{}
	cancel context.CancelFunc

	// What follows belongs to the goroutine that writes.

	written map[string]*dataplane.Service // what the kernel does; nil: not known, and to be replaced
	applied []dataplane.Change            // since flows were cleaned
	backoff time.Duration

	metrics *metrics
}

func newDriver() *Driver {
	return &Driver{
		check: checkEvery, kick: make(chan struct{}, 1), done: make(chan struct{}),
		desired: map[string]*dataplane.Service{}, pending: map[string]bool{},
		failure: errors.New("nothing was written yet"), metrics: newMetrics(),
	}
}

// start gives the driver its writer, and what to do when that has replaced everything for the first time.
func (d *Driver) start(writer dataplane.Writer, flows flows, replaced func(context.Context)) {
	d.writer, d.flows, d.replaced = writer, flows, replaced
}

// Update takes changes of what is desired; Old is not looked at. The first call starts the writing, and also one
// without changes is one.
func (d *Driver) Update(changes []dataplane.Change) {
	d.mu.Lock()
	for _, c := range changes {
		d.pending[c.Name()] = true
		if c.New == nil {
			delete(d.desired, c.Name())
		} else {
			d.desired[c.Name()] = c.New
		}
	}
	if d.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		d.cancel = cancel
		go d.run(ctx)
	}
	d.mu.Unlock()
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// Ready tells why the kernel is not as desired, or nil.
func (d *Driver) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// Settle waits until the kernel is as desired, or returns why it is not when ctx ends or an attempt failed.
func (d *Driver) Settle(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		d.mu.Lock()
		idle, failure := len(d.pending) == 0, d.failure
		d.mu.Unlock()
		if idle && failure == nil {
			return nil
		}
		if d.metrics.failed() {
			return failure
		}
		select {
		case <-ctx.Done():
			return cmp.Or(failure, ctx.Err())
		case <-tick.C:
		}
	}
}

// Stop ends the writing after the transaction under way. What was written stays.
func (d *Driver) Stop() {
	d.mu.Lock()
	cancel := d.cancel
	d.mu.Unlock()
	if cancel != nil {
		cancel()
		<-d.done
	}
}

func (d *Driver) run(ctx context.Context) {
	defer close(d.done)
	retry := time.NewTimer(0)
	defer retry.Stop()
	<-retry.C
	check := time.NewTicker(d.check)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.kick:
		case <-retry.C:
		case <-check.C:
			d.verify(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err := d.sync(ctx); err != nil {
			d.backoff = min(max(2*d.backoff, firstRetry), mostRetry)
			klog.ErrorS(err, "Not all services are programmed", "retryIn", d.backoff)
			retry.Reset(d.backoff)
			continue
		}
		d.backoff = 0
		if d.replaced != nil {
			d.replaced(ctx)
			d.replaced = nil
		}
	}
}

// verify forgets what the kernel does when someone else has changed it.
func (d *Driver) verify(ctx context.Context) {
	if d.written == nil {
		return
	}
	intact, err := d.writer.Check(ctx)
	switch {
	case err != nil:
		klog.ErrorS(err, "Checking the rules")
	case !intact:
		klog.InfoS("Someone else removed or altered our rules; writing them again")
		d.metrics.repairs.Inc()
		d.written = nil
	}
}

// sync writes what is pending, or everything.
func (d *Driver) sync(ctx context.Context) error {
	d.mu.Lock()
	desired, names := maps.Clone(d.desired), slices.Sorted(maps.Keys(d.pending))
	clear(d.pending)
	d.mu.Unlock()

	var err error
	start := time.Now()
	kind := "partial"
	switch {
	case d.written == nil:
		kind, err = "full", d.replace(ctx, desired)
	case len(names) != 0:
		err = d.apply(ctx, d.changes(desired, names))
	default:
		return nil
	}
	d.metrics.observe(kind, time.Since(start), err)
	d.cleanFlows(ctx, kind == "full")
	d.mu.Lock()
	d.failure = err
	if err != nil && d.written != nil {
		for _, name := range names {
			if !dataplane.Equal(d.written[name], d.desired[name]) {
				d.pending[name] = true
			}
		}
	}
	d.mu.Unlock()
	return err
}

// cleanFlows is called when the kernel has the changes: before, a new flow could go the old way again. A failure is not
// one of the services', and trying again later would find other flows.
func (d *Driver) cleanFlows(ctx context.Context, all bool) {
	var removed int
	var err error
	switch {
	case all && d.written != nil:
		removed, err = d.flows.CleanAll(ctx, slices.Collect(maps.Values(d.written)))
	case !all && len(d.applied) != 0:
		removed, err = d.flows.Clean(ctx, d.applied)
	}
	d.applied = nil
	d.metrics.flows.Add(float64(removed))
	if err != nil {
		d.metrics.flowFailures.Inc()
		klog.ErrorS(err, "Flows that go the wrong way may be left")
	}
}

// replace writes everything. When the kernel does not take it, it is written without services, and these one after the
// other, so that one that is refused is not the end of all.
func (d *Driver) replace(ctx context.Context, desired map[string]*dataplane.Service) error {
	names := slices.Sorted(maps.Keys(desired))
	all := make([]*dataplane.Service, 0, len(names))
	for _, name := range names {
		all = append(all, desired[name])
	}
	err := d.writer.Replace(ctx, all)
	if err == nil {
		d.written = desired
		return nil
	}
	if len(all) == 0 || d.writer.Replace(ctx, nil) != nil {
		return err
	}
	d.written = map[string]*dataplane.Service{}
	err = d.apply(ctx, d.changes(desired, names))
	if err != nil {
		d.mu.Lock()
		for _, name := range names {
			if d.written[name] == nil {
				d.pending[name] = true
			}
		}
		d.mu.Unlock()
	}
	return err
}

func (d *Driver) changes(desired map[string]*dataplane.Service, names []string) []dataplane.Change {
	var changes []dataplane.Change
	for _, name := range names {
		c := dataplane.Change{Old: d.written[name], New: desired[name]}
		if !dataplane.Equal(c.Old, c.New) {
			changes = append(changes, c)
		}
	}
	return changes
}

// apply writes changes in one transaction; when that fails, in halves, down to the one that fails.
func (d *Driver) apply(ctx context.Context, changes []dataplane.Change) error {
	if len(changes) == 0 {
		return nil
	}
	err := d.writer.Apply(ctx, changes)
	if err == nil {
		d.applied = append(d.applied, changes...)
		for _, c := range changes {
			if c.New == nil {
				delete(d.written, c.Name())
			} else {
				d.written[c.Name()] = c.New
			}
		}
		return nil
	}
	if len(changes) == 1 || ctx.Err() != nil {
		return fmt.Errorf("service %s: %w", changes[0].Name(), err)
	}
	half := len(changes) / 2
	return errors.Join(d.apply(ctx, changes[:half]), d.apply(ctx, changes[half:]))
}
