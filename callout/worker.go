// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// worker runs tasks, one at a time, in a goroutine of its own.
//
// A state that arrives during a run waits; the next one takes its place. So N changes during a run are one further
// run, with the newest of them, and nothing piles up however slow the program is. A failed task waits for its
// retry in the same queue, and is replaced there in the same way.
type worker struct {
	run     func(context.Context, *task) error // one run; never called concurrently, always on the same thread
	backoff backoff
	resync  time.Duration // 0: off
	metrics *metrics

	wake chan struct{} // holds a token when there is news for the loop
	done chan struct{} // closed when the loop has ended
	stop context.CancelFunc

	mu       sync.Mutex
	queue    *queue
	known    known // nil without resync
	draining bool  // no more states will come, and no retries are made
	failed   int   // tasks that failed for good, while draining
	firstErr error // of them
	lastErr  error // of the last run: why we are not ready
	ran      bool  // at least once
}

// start starts the loop. Exactly one finish must follow.
func (w *worker) start() {
	ctx, cancel := context.WithCancel(context.Background())
	w.queue = newQueue()
	if w.resync > 0 {
		w.known = known{}
	}
	w.wake = make(chan struct{}, 1)
	w.done = make(chan struct{})
	w.stop = cancel
	go w.loop(ctx)
}

// offer has tasks run soon, each instead of one with its key that still waits. It does not block.
func (w *worker) offer(tasks ...*task) {
	w.mu.Lock()
	for _, t := range tasks {
		if w.queue.put(t) {
			w.metrics.coalesced.Inc()
		}
		if w.known != nil {
			w.known.note(t)
		}
	}
	w.metrics.waiting.Set(float64(w.queue.len()))
	w.mu.Unlock()
	w.wakeUp()
}

// finish lets what waits run, without retries, and returns what failed. When ctx ends, it stops the running
// program instead, drops what waits, and returns nil.
func (w *worker) finish(ctx context.Context) error {
	w.mu.Lock()
	w.draining = true
	w.mu.Unlock()
	w.wakeUp()

	select {
	case <-w.done:
	case <-ctx.Done():
	}
	w.stop()
	<-w.done
	if ctx.Err() != nil {
		return nil
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed > 1 {
		return fmt.Errorf("%d runs failed; the first: %w", w.failed, w.firstErr)
	}
	return w.firstErr
}

// ready is nil when the last run was a success.
func (w *worker) ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ran {
		return errors.New("the callout program has not been run yet")
	}
	return w.lastErr
}

func (w *worker) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) loop(ctx context.Context) {
	runtime.LockOSThread() // programs die with the thread that started them, see ownGroup
	defer runtime.UnlockOSThread()
	defer close(w.done)

	var resync <-chan time.Time
	if w.resync > 0 {
		ticker := time.NewTicker(w.resync)
		defer ticker.Stop()
		resync = ticker.C
	}
	for ctx.Err() == nil {
		t, wait, drained := w.next()
		switch {
		case t != nil:
			w.metrics.running.Set(1)
			start := time.Now()
			err := w.run(ctx, t)
			took := time.Since(start)
			w.metrics.running.Set(0)
			w.metrics.observe(took, err)
			w.ended(ctx, t, took, err)
		case drained:
			return
		default:
			select {
			case <-ctx.Done():
			case <-w.wake:
			case <-after(wait):
			case <-resync:
				w.offerResync()
			}
		}
	}
}

// next takes the next task; when none is due, it says how long to wait for one, or that none will come.
func (w *worker) next() (t *task, wait time.Duration, drained bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.metrics.waiting.Set(float64(w.queue.len())) }()

	if t, wait = w.queue.take(time.Now()); t != nil || !w.draining {
		return t, wait, false
	}
	for _, t := range w.queue.drain() { // they wait for a retry, of which there will be none
		w.fail(t.lastErr)
	}
	return nil, 0, true
}

// ended notes how a run ended, logs it, and has a failed one repeated.
func (w *worker) ended(ctx context.Context, t *task, took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran = true
	w.lastErr = err
	switch {
	case err == nil:
		t.log("callout ran", took, "status", 0)
	case w.draining && ctx.Err() == nil:
		w.fail(err) // finish returns it
	case ctx.Err() != nil:
		t.log("callout stopped", took, "err", err)
	case w.queue.has(t.key):
		t.log("callout failed, a newer state is next", took, "err", err)
	default:
		wait := w.backoff.after(t.attempt)
		t.log("callout failed, will retry", took, "err", err, "in", wait.Round(time.Millisecond))
		w.queue.put(t.retry(time.Now().Add(wait), err))
	}
}

// log logs how a run of the task ended.
func (t *task) log(message string, took time.Duration, more ...any) {
	about := []any{"reason", t.reason, "revision", t.revision, "items", len(t.items), "attempt", t.attempt, "took", took.Round(time.Millisecond)}
	if t.key != "" {
		about = append([]any{"service", t.key}, about...)
	}
	klog.InfoS(message, append(about, more...)...)
}

// fail notes a task that will not be retried. The caller holds mu.
func (w *worker) fail(err error) {
	w.failed++
	if w.firstErr == nil {
		w.firstErr = err
	}
}

// offerResync has everything run again but what waits anyway.
func (w *worker) offerResync() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.known.tasks() {
		if !w.queue.has(t.key) {
			w.queue.put(t)
		}
	}
}
