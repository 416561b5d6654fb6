// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// fleet is the watchers of one run. Each has a connection of its own, as on a node of its own.
type fleet struct {
	world  *world
	socket func(i int) string // of the server that watcher i is at

	watchers []*watcher
	goal     atomic.Pointer[goal]
	running  sync.WaitGroup
	stopAll  context.CancelFunc

	mu     sync.Mutex
	failed error
}

// goal is a state that watchers are waited for to reach.
type goal struct {
	digest  uint64
	left    atomic.Int32
	reached chan struct{} // closed by the last one
	at      time.Time     // when that was
}

// habit is how a watcher behaves.
type habit struct {
	pause    time.Duration // after each message; such a watcher asks for no batches, so a message is an op
	restless bool          // it reconnects at random
	retry    bool          // it reconnects when the connection breaks, as package client does
}

func (h habit) healthy() bool { return h.pause == 0 && !h.restless }

// watcher follows a server and checks what it is told.
type watcher struct {
	*fleet
	habit

	number    int
	view      *view
	seen      *goal
	total     atomic.Uint64 // of the view at the last Sync
	syncs     atomic.Int64
	ops       atomic.Int64
	connects  atomic.Int64
	connected atomic.Bool
}

func newFleet(w *world, socket string) *fleet {
	return &fleet{world: w, socket: func(int) string { return socket }}
}

// add adds n watchers, which start with start.
func (f *fleet) add(n int, h habit) {
	for range n {
		i := len(f.watchers)
		f.watchers = append(f.watchers, &watcher{fleet: f, habit: h, number: i, view: newView(f.world, i)})
	}
}

func (f *fleet) start(ctx context.Context) {
	ctx, f.stopAll = context.WithCancel(ctx)
	for _, w := range f.watchers {
		f.running.Go(func() { w.run(ctx) })
	}
}

// stop ends all watchers, and returns what they found wrong.
func (f *fleet) stop() error {
	f.stopAll()
	f.running.Wait()
	return f.failure()
}

func (f *fleet) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *fleet) fail(w *watcher, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		f.failed = fmt.Errorf("watcher %d (%+v): %w", w.number, w.habit, err)
	}
}

// aim sets the next goal for all watchers that are healthy, none of which is there yet.
func (f *fleet) aim(digest uint64) *goal {
	g := &goal{digest: digest, reached: make(chan struct{})}
	for _, w := range f.watchers {
		if w.healthy() {
			g.left.Add(1)
		}
	}
	f.goal.Store(g)
	return g
}

// wait waits until the goal is reached.
func (f *fleet) wait(ctx context.Context, g *goal, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	check := time.NewTicker(100 * time.Millisecond)
	defer check.Stop()
	for {
		select {
		case <-g.reached:
			return f.failure()
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return errors.Join(f.failure(), fmt.Errorf("%d watchers have not converged within %v", g.left.Load(), limit))
		case <-check.C:
			if err := f.failure(); err != nil {
				return err
			}
		}
	}
}

// converge waits until all healthy watchers hold what the world is now, and returns how long that took.
func (f *fleet) converge(ctx context.Context, limit time.Duration) (time.Duration, error) {
	start := time.Now()
	for {
		behind := f.behind()
		switch {
		case f.failure() != nil:
			return 0, f.failure()
		case behind == 0:
			return time.Since(start), nil
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case time.Since(start) > limit:
			return 0, fmt.Errorf("%d watchers have not converged within %v", behind, limit)
		}
		time.Sleep(time.Millisecond)
	}
}

func (f *fleet) behind() (n int) {
	expected := f.world.expected()
	for _, w := range f.watchers {
		if w.healthy() && (w.total.Load() != expected || !w.connected.Load()) {
			n++
		}
	}
	return n
}

// sum adds up a counter of all watchers.
func (f *fleet) sum(counter func(w *watcher) int64) (sum int64) {
	for _, w := range f.watchers {
		sum += counter(w)
	}
	return sum
}

// wrong is what a server must not send, as opposed to a connection that broke.
type wrong struct{ error }

func (w *watcher) run(ctx context.Context) {
	for delay := time.Second; ; delay = min(2*delay, 10*time.Second) {
		synced, err := w.follow(ctx)
		w.connected.Store(false)
		bad := wrong{}
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, &bad), !w.retry && !w.restless:
			w.fail(w, err)
			return
		case w.restless:
			continue
		}
		if synced {
			delay = time.Second
		}
		sleep(ctx, delay/2+rand.N(delay/2))
	}
}

// follow follows one stream to its end, and says whether it brought a whole state.
func (w *watcher) follow(ctx context.Context) (synced bool, err error) {
	s, err := dial(ctx, w.socket(w.number), nodeName(w.number), w.pause == 0)
	if err != nil {
		return false, err
	}
	w.connects.Add(1)
	defer s.close()
	defer context.AfterFunc(ctx, s.close)()
	if w.restless {
		defer time.AfterFunc(200*time.Millisecond+rand.N(2*time.Second), s.close).Stop()
	}
	for first := true; ; first = false {
		if err := s.ask(); err != nil {
			return !first, err
		}
		if err := w.changeSet(ctx, s); err != nil {
			return !first, err
		}
		w.published()
	}
}

// changeSet reads up to a Sync.
func (w *watcher) changeSet(ctx context.Context, s *stream) error {
	for {
		message, err := s.next()
		if err != nil {
			return err
		}
		synced, err := w.view.message(message)
		if err != nil {
			return wrong{err}
		}
		if w.pause != 0 {
			sleep(ctx, w.pause)
		}
		if synced {
			return nil
		}
	}
}

// published tells those who wait what this watcher holds now.
func (w *watcher) published() {
	w.total.Store(w.view.total)
	w.ops.Store(int64(w.view.ops))
	w.syncs.Add(1)
	w.connected.Store(true)
	g := w.goal.Load()
	if g == nil || w.seen == g || w.view.total != g.digest || !w.healthy() {
		return
	}
	w.seen = g
	if g.left.Add(-1) == 0 {
		g.at = time.Now()
		close(g.reached)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
