// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"sync"
)

// handwritten keeps one feed for each Service whose EndpointSlices nobody labels: the Service has no selector, so no
// controller makes them. Its methods are called by the feed of Services, from one goroutine.
type handwritten struct {
	session *session
	ctx     context.Context // the life of the session, and so of the feeds started in its course
	feeds   *sync.WaitGroup // of the session; the feed of Services counts in it, so it is not waited for too early
	running map[key]*handwrittenFeed
}

type handwrittenFeed struct {
	*feed
	cancel context.CancelFunc
}

func (h *handwritten) seen(i *item) {
	_, running := h.running[i.key()]
	switch {
	case i.handwritten && !running:
		h.start(i.key())
	case !i.handwritten && running:
		h.gone(i.key())
	}
}

func (h *handwritten) start(service key) {
	f := h.session.newFeed("endpointslices of "+service.String(), sliceKind, h.session.slices)
	f.namespace = service.namespace
	f.selector = h.session.config.HandwrittenSelector(service.name)
	ctx, cancel := context.WithCancel(h.ctx)
	h.running[service] = &handwrittenFeed{feed: f, cancel: cancel}
	h.session.metrics.feeds.Set(float64(len(h.running)))
	h.session.gate.add(f)
	h.feeds.Go(func() { f.run(ctx) })
}

func (h *handwritten) gone(service key) {
	f, running := h.running[service]
	if !running {
		return
	}
	f.cancel()
	delete(h.running, service)
	h.session.metrics.feeds.Set(float64(len(h.running)))
	h.session.mirror.stop(f.feed)
	h.session.health.retire(f.feed)
	h.session.gate.done(f.feed)
}
