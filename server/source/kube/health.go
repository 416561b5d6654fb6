// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// health knows which feeds cannot follow the API server at the moment. It logs when a resource goes stale and when it
// is fresh again, and not each attempt in between.
type health struct {
	metrics *metrics

	mu      sync.Mutex
	failing map[*feed]failure
	told    map[*resource]bool // that it is stale
	quiet   bool               // until the state is whole; before, Run returns the error
}

type failure struct {
	since time.Time
	err   error // the latest
}

func newHealth(m *metrics) *health {
	return &health{metrics: m, failing: map[*feed]failure{}, told: map[*resource]bool{}, quiet: true}
}

// speak begins logging.
func (h *health) speak() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.quiet = false
}

// failed records that a feed cannot list or watch.
func (h *health) failed(f *feed, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.retired {
		return
	}
	before, already := h.failing[f]
	if already {
		h.failing[f] = failure{since: before.since, err: err}
		klog.V(2).InfoS("Still cannot follow the API server", "feed", f.name, "since", before.since, "reason", err)
		return
	}
	h.failing[f] = failure{since: time.Now(), err: err}
	h.metrics.stale.WithLabelValues(f.resource.name).Set(1)
	if !h.quiet && !h.told[f.resource] {
		h.told[f.resource] = true
		klog.InfoS("Cannot follow the API server: the last known state stays", "feed", f.name, "reason", err)
	}
}

// fine records that a feed watches.
func (h *health) fine(f *feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fineLocked(f)
}

// retire records that a feed is no more; what it still says is ignored.
func (h *health) retire(f *feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f.retired = true
	h.fineLocked(f)
}

func (h *health) fineLocked(f *feed) {
	before, failing := h.failing[f]
	if !failing {
		return
	}
	delete(h.failing, f)
	if h.count(f.resource) != 0 {
		return
	}
	h.metrics.stale.WithLabelValues(f.resource.name).Set(0)
	if h.told[f.resource] {
		h.told[f.resource] = false
		klog.InfoS("Following the API server again", "feed", f.name, "after", time.Since(before.since).Round(time.Millisecond))
	}
}

func (h *health) count(r *resource) (n int) {
	for f := range h.failing {
		if f.resource == r {
			n++
		}
	}
	return n
}

// err returns the longest failure, or nil.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var worst failure
	var name string
	for f, failure := range h.failing {
		if name == "" || failure.since.Before(worst.since) || failure.since.Equal(worst.since) && f.name < name {
			worst, name = failure, f.name
		}
	}
	if name == "" {
		return nil
	}
	more := ""
	if n := len(h.failing) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Errorf("%s: %w since %s%s", name, worst.err, worst.since.Format(time.TimeOnly), more)
}

// cause returns the latest error of a failing feed that is needed, or nil.
func (h *health) cause() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var worst error
	var name string
	for f, failure := range h.failing {
		if name == "" || f.name < name {
			worst, name = failure.err, f.name
		}
	}
	return worst
}
