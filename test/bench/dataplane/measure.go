// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	limit  = time.Minute
	warmUp = 2
	// resting is how long a proxy must have done next to nothing to be at rest.
	resting = 300 * time.Millisecond
	// settle lets a proxy finish what it does after a commit.
	settle = 20 * time.Millisecond
	// enoughConnections makes it all but certain that each of ten endpoints was met: 10 x 0.9^200 is one in 10^8.
	enoughConnections = 200
)

// figures are what is measured of a proxy at a size.
type figures struct {
	firstSync      time.Duration   // from its start until the last Service answers
	seen           []time.Duration // from when the source told of a change until the kernel has it
	cpu            time.Duration   // for a change
	resident, peak int
	failed         string // why there is nothing of the above
}

// measure starts a proxy on a node of its own, makes changes, and ends it.
func (b *bench) measure(ctx context.Context, p proxy, from source, services int) (fig figures, err error) {
	n, err := newNode()
	if err != nil {
		return fig, err
	}
	defer n.close()
	r, took, err := b.start(ctx, p, n, from, services)
	if errors.As(err, &errTooSlow{}) {
		fig.failed = fmt.Sprintf("not within %v", b.patience)
		return fig, nil
	}
	if err != nil {
		return fig, err
	}
	defer r.kill()
	fig.firstSync = took
	w, err := r.watch()
	if err != nil {
		return fig, err
	}
	if err := b.changes(ctx, r, w, from, &fig); err != nil {
		return fig, errors.Join(fmt.Errorf("%s: %w", p, err), w.close())
	}
	fig.resident, fig.peak = r.resident()
	return fig, errors.Join(r.obeys(ctx, w, from), w.close())
}

// changes makes one-endpoint changes, one after the other: an endpoint of some Service goes, the next change brings
// it back. A slow proxy is asked for as many as fit into the time.
func (b *bench) changes(ctx context.Context, r *running, w *watcher, from source, fig *figures) error {
	if err := r.rest(ctx, w); err != nil {
		return err
	}
	var before time.Duration
	began, n := time.Now(), 0
	for ; n < warmUp+b.changeCount && (n < warmUp+b.fewest || time.Since(began) < b.changeTime); n++ {
		if n == warmUp {
			began, before = time.Now(), r.cpu()
		}
		service, down := n/2*37%r.services, noneDown
		if n%2 == 0 {
			down = n / 2 % endpoints
		}
		seen, err := r.change(ctx, w, from, service, down)
		if err != nil {
			return fmt.Errorf("change %d: %w", n, err)
		}
		if n >= warmUp {
			fig.seen = append(fig.seen, seen)
		}
		time.Sleep(settle)
	}
	fig.cpu = (r.cpu() - before) / time.Duration(n-warmUp)
	if n%2 == 0 {
		return nil
	}
	_, err := r.change(ctx, w, from, n/2*37%r.services, noneDown)
	return err
}

// rest waits until a proxy has done all that its first sync takes: it serves before that, as the other address family
// and the clean-up come later, and the kernel is still telling of what it has already put in force.
func (r *running) rest(ctx context.Context, w *watcher) error {
	used := r.cpu()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		select {
		case <-time.After(resting):
		case <-ctx.Done():
			return ctx.Err()
		}
		now, told := r.cpu(), w.drain()
		if now-used < resting/20 && told == 0 && !r.hasChildren() {
			return nil
		}
		used = now
	}
	return fmt.Errorf("%s is never at rest", r.proxy)
}

// change makes a change and returns when the kernel has it.
func (r *running) change(ctx context.Context, w *watcher, from source, service, down int) (time.Duration, error) {
	w.drain()
	told, err := from.change(ctx, service, down)
	if err != nil {
		return 0, err
	}
	at, err := w.wait(ctx, service, limit)
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, r.lastWords())
	}
	return at.Sub(told), nil
}

// obeys checks with packets that a proxy does what it is told, as what is fast and wrong is worth nothing: an endpoint
// that is down gets no connection, the others do, and it does again when it is back.
func (r *running) obeys(ctx context.Context, w *watcher, from source) error {
	service, down := r.services/2, 3
	for _, state := range []int{down, noneDown} {
		if _, err := r.change(ctx, w, from, service, state); err != nil {
			return err
		}
		time.Sleep(settle)
		met := map[byte]int{}
		for range enoughConnections {
			who, err := r.node.answers(ctx, serviceAddress(service), time.Second)
			if err != nil {
				return fmt.Errorf("%s, after changes: %w", r.proxy, err)
			}
			met[who]++
		}
		for j := range endpoints {
			ip := endpointIP(service, j).As4()
			if want, got := j != state, met[ip[3]] > 0; want != got {
				return fmt.Errorf("%s: endpoint %d of %s: connections %v, expected %v, while endpoint %d is down",
					r.proxy, j, serviceName(service), got, want, state)
			}
		}
	}
	return nil
}
