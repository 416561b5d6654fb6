// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

const (
	firstRetry = 500 * time.Millisecond
	mostRetry  = 30 * time.Second
	// checkEvery leaves time for the repair: altered rules are to be right again within 20 s, also of a busy node.
	checkEvery = 10 * time.Second
)

// flows removes the flows of connections that a change made wrong: package conntrack, or a test.
type flows interface {
	Clean(ctx context.Context, changes []dataplane.Change) (int, error)
	// CleanAll is for what may have changed while nobody looked. Complete: the kernel does nothing for the owner but
	// these services, so a flow of ours to anything else is left over.
	CleanAll(ctx context.Context, services []*dataplane.Service, complete bool) (int, error)
}

// Driver has a writer make the kernel follow. Its life:
//
//  1. newDriver, and start with a writer.
//  2. Update, with the first whole state, makes that replace everything that is there; later ones are changes. It
//     returns at once: changes that come while the kernel is written wait, one for a service.
//  3. A round (see sync) writes what waits. A service that the kernel refuses is found out, reported, and left as it
//     was in the kernel; it is tried again on its own, later and later, and holds nobody up.
//  4. Stop, when no more changes come, lets the transaction under way end.
type Driver struct {
	writer   dataplane.Writer
	replaced func(context.Context) // called once, when what an earlier run wrote was replaced
	flows    flows
	metrics  *metrics

	check       time.Duration // how often it is checked whether what was written is there
	replaceTime time.Duration // see exclude
	searchTime  time.Duration // see search

	ledger *ledger
	kick   chan struct{}
	done   chan struct{}
	cancel context.CancelFunc // ledger.mu; nil: not started

	// What follows belongs to the goroutine that writes.

	written map[string]*dataplane.Service // what the kernel does; nil: not known
	altered bool                          // someone else changed the rules: written is to be put there again
	// unswept: flows from before the start may go wrong still, as not everything was written when they were looked at.
	unswept bool

	refused  map[string]*refusal
	suspects map[string]int // what a search for refused services did not get to, by the part of it; see search
	parts    int            // so many were there
	stuck    bool           // the last round ended with an error about all services
	backoff  time.Duration  // until the next retry; 0: there is none to be
	said     saids
}

func newDriver() *Driver {
	m := newMetrics()
	return &Driver{
		check: checkEvery, replaceTime: replaceTime, searchTime: searchTime, kick: make(chan struct{}, 1), done: make(chan struct{}),
		ledger: newLedger(m.pending.Set), metrics: m,
		refused: map[string]*refusal{}, suspects: map[string]int{},
	}
}

// start gives the driver its writer, and what to do when that has replaced what an earlier run wrote.
func (d *Driver) start(writer dataplane.Writer, flows flows, replaced func(context.Context)) {
	d.writer, d.flows, d.replaced = writer, flows, replaced
}

// Update takes changes of what is desired; Old is not looked at. The first call starts the writing, and also one
// without changes is one. Triggers tells, by the name of a service, when that happened which made it change, as far
// as that is known.
func (d *Driver) Update(changes []dataplane.Change, triggers map[string]time.Time) {
	d.ledger.enter(changes, triggers)
	d.ledger.mu.Lock()
	if d.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		d.cancel = cancel
		go d.run(ctx)
	}
	d.ledger.mu.Unlock()
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// Ready tells why the kernel is not as desired, or nil.
func (d *Driver) Ready() error {
	_, err := d.ledger.settled()
	return err
}

// Settle waits until the kernel is as desired, or returns why it is not when all was tried or ctx ends. What nobody
// asked for yet is not waited for.
func (d *Driver) Settle(ctx context.Context) error {
	if !d.started() {
		return nil
	}
	for {
		changed := d.ledger.watch()
		settled, err := d.ledger.settled()
		if settled {
			return err
		}
		select {
		case <-ctx.Done():
			return cmp.Or(err, ctx.Err())
		case <-changed:
		}
	}
}

func (d *Driver) started() bool {
	d.ledger.mu.Lock()
	defer d.ledger.mu.Unlock()
	return d.cancel != nil
}

// Stop ends the writing after the transaction under way. What was written stays.
func (d *Driver) Stop() {
	if d.started() {
		d.cancel()
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
		due := false
		select {
		case <-ctx.Done():
		case <-retry.C:
			due = true
		case <-check.C:
			d.verify(ctx)
		case <-d.kick:
		}
		if ctx.Err() != nil {
			return
		}
		if d.stuck && !due {
			continue // changes that come meanwhile make the kernel no more willing
		}
		news := d.sync(ctx, due)
		if after := d.nextRetry(due, news); after != 0 {
			retry.Reset(jittered(after))
		} else if d.backoff == 0 {
			retry.Stop()
		}
	}
}

// nextRetry sets the back-off, and returns when the retry is to be; 0 when that is not changed. Changes that come all
// the time do not put it off.
func (d *Driver) nextRetry(due, news bool) time.Duration {
	switch {
	case !d.stuck && len(d.refused) == 0 && len(d.suspects) == 0:
		d.backoff = 0
		return 0
	case news && (due || d.backoff > firstRetry), d.backoff == 0:
		d.backoff = firstRetry
	case due:
		d.backoff = min(2*d.backoff, mostRetry)
	default:
		return 0
	}
	return d.backoff
}

// jittered is between a half of the time and all of it: the nodes of a cluster are not to try again all at once.
func jittered(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2) //nolint:gosec // nobody gains from guessing it
}

// verify notes when someone else has changed the rules.
func (d *Driver) verify(ctx context.Context) {
	if d.written == nil || d.altered {
		return
	}
	intact, err := d.writer.Check(ctx)
	if d.said.differs(aboutCheck, err) && err != nil {
		klog.ErrorS(err, "Checking the rules")
	}
	if err == nil && !intact {
		klog.InfoS("Someone else removed or altered our rules; writing them again")
		d.metrics.repairs.Inc()
		d.altered = true
	}
}

// cleanFlows is called when the kernel has the changes: before, a new flow could go the old way again. Flows of services
// that were not written are left alone. A failure is not one of the services', and trying again later would find
// other flows.
func (d *Driver) cleanFlows(ctx context.Context, r *round, err error) {
	complete := err == nil && len(d.refused) == 0 && len(d.suspects) == 0
	switch {
	case r.replaced || d.unswept && complete:
		d.cleaned(d.flows.CleanAll(ctx, values(d.written), complete))
		d.unswept = !complete
		return
	case len(r.applied) == 0:
		return
	case d.unswept:
		var first []*dataplane.Service
		for _, c := range r.applied {
			if c.Old == nil {
				first = append(first, c.New)
			}
		}
		d.cleaned(d.flows.CleanAll(ctx, first, false))
	}
	d.cleaned(d.flows.Clean(ctx, r.applied))
}

func (d *Driver) cleaned(removed int, err error) {
	d.metrics.flows.Add(float64(removed))
	if err != nil {
		d.metrics.flowFailures.Inc()
		klog.ErrorS(err, "Flows that go the wrong way may be left")
	}
}
