// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/server/store"
)

// mirror turns what the feeds say into commits to the store. It remembers of each object who said what (as a digest),
// so that what is not news goes no further, and gathers the news until there is a moment of quiet.
type mirror struct {
	delay, maxDelay time.Duration
	began           time.Time

	mu     sync.Mutex
	held   [3]map[key]*held // by kind
	news   map[subject]*item
	first  time.Time // when the oldest of the news came
	last   time.Time // when the newest came
	synced bool      // the state is whole: commits may begin

	wake chan struct{} // capacity 1: there is something to commit
}

// subject is what a piece of news is about. Its item is nil when the object is gone.
type subject struct {
	kind kind
	key  key
}

// held is what is known of an object.
type held struct {
	// feeds that know the object, the newest to learn of it last. A slice has two while its labels change, or when
	// its service does, and must stay as long as one of them knows it.
	feeds   []*feed
	version uint64
	digest  uint64
	carried bool
	// triggered is the last one said, in Unix nanoseconds: whoever else changes a slice may leave the controller's
	// annotation as it was.
	triggered int64
}

func newMirror(delay, maxDelay time.Duration) *mirror {
	m := &mirror{delay: delay, maxDelay: maxDelay, began: time.Now(), news: map[subject]*item{}, wake: make(chan struct{}, 1)}
	for k := range m.held {
		m.held[k] = map[key]*held{}
	}
	return m
}

// set records what a feed says of one object.
func (m *mirror) set(f *feed, i *item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.stopped {
		return
	}
	m.setLocked(f, i)
	m.notify()
}

// unset records that a feed knows an object no more.
func (m *mirror) unset(f *feed, k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsetLocked(f, k)
	m.notify()
}

// replace records that a feed knows these objects and no others, in one step.
func (m *mirror) replace(f *feed, items []*item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.stopped {
		return
	}
	there := make(map[key]struct{}, len(items))
	for _, i := range items {
		there[i.key()] = struct{}{}
		m.setLocked(f, i)
	}
	for k := range f.keys {
		if _, ok := there[k]; !ok {
			m.unsetLocked(f, k)
		}
	}
	m.notify()
}

// stop forgets what only this feed knows. It says nothing more.
func (m *mirror) stop(f *feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.stopped = true
	for k := range f.keys {
		m.unsetLocked(f, k)
	}
	m.notify()
}

func (m *mirror) setLocked(f *feed, i *item) {
	k := i.key()
	f.keys[k] = struct{}{}
	h := m.held[f.kind][k]
	if h == nil {
		h = &held{digest: ^i.digest}
		m.held[f.kind][k] = h
	}
	if !slices.Contains(h.feeds, f) {
		h.feeds = append(h.feeds, f)
	}
	if len(h.feeds) > 1 && i.version < h.version {
		return // the other feed is ahead
	}
	h.version = i.version
	triggered := i.triggered.UnixNano()
	if triggered == h.triggered || i.triggered.Before(m.began) {
		i.triggered = time.Time{}
	}
	h.triggered = triggered
	if h.digest == i.digest {
		return
	}
	h.digest = i.digest
	for _, problem := range i.problems {
		klog.InfoS("Not all of an object can be carried", "kind", f.kind, "object", k, "problem", problem)
	}
	if i.set == nil {
		if h.carried {
			m.add(subject{f.kind, k}, nil)
		}
		h.carried = false
		return
	}
	h.carried = true
	m.add(subject{f.kind, k}, i)
}

func (m *mirror) unsetLocked(f *feed, k key) {
	h := m.held[f.kind][k]
	delete(f.keys, k)
	if h == nil {
		return
	}
	at := slices.Index(h.feeds, f)
	if at < 0 {
		return
	}
	if h.feeds = slices.Delete(h.feeds, at, at+1); len(h.feeds) != 0 {
		return
	}
	delete(m.held[f.kind], k)
	if h.carried {
		m.add(subject{f.kind, k}, nil)
	}
}

func (m *mirror) add(about subject, i *item) {
	now := time.Now()
	if len(m.news) == 0 {
		m.first = now
	}
	m.last = now
	if before := m.news[about]; before != nil && i != nil {
		i.triggered = earlier(before.triggered, i.triggered)
	}
	m.news[about] = i
}

// earlier returns the earlier of two times, where zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// sync says that the state is whole, as soon as what is gathered is committed.
func (m *mirror) sync() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = true
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mirror) notify() {
	if !m.synced || len(m.news) == 0 {
		return
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run commits until ctx ends.
func (m *mirror) run(ctx context.Context, st *store.Store) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		if !m.settle(ctx) {
			return
		}
		m.commit(st)
	}
}

// settle waits until nothing has come for the delay, or the oldest of the news has waited for the maximum.
func (m *mirror) settle(ctx context.Context) bool {
	for {
		m.mu.Lock()
		wait := min(time.Until(m.last.Add(m.delay)), time.Until(m.first.Add(m.maxDelay)))
		m.mu.Unlock()
		if wait <= 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// commit passes the news on to the store.
func (m *mirror) commit(st *store.Store) {
	m.mu.Lock()
	news, first := m.news, m.first
	m.news = map[subject]*item{}
	m.mu.Unlock()
	if len(news) == 0 && st.Snapshot().Synced() {
		return
	}
	st.Update(func(tx *store.Tx) {
		tx.SetSynced()
		if len(news) != 0 {
			tx.SetEventTime(first)
		}
		for about, i := range news {
			if i != nil {
				i.set(tx)
			} else {
				forget(tx, about)
			}
		}
	})
}

func forget(tx *store.Tx, about subject) {
	switch about.kind {
	case serviceKind:
		tx.DeleteService(about.key.namespace, about.key.name)
	case sliceKind:
		tx.DeleteSlice(about.key.namespace, about.key.name)
	case nodeKind:
		tx.DeleteNode(about.key.name)
	}
}
