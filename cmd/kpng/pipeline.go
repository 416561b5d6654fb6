// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kpng/internal/process"
	"sigs.k8s.io/kpng/server/serve"
	"sigs.k8s.io/kpng/server/store"
)

// pipeline is a source, a store, and what is done with it.
type pipeline struct {
	options *process.Options
	open    func() (source, error)
}

// sink is what is done with a store until ctx ends; when it returns, the process ends. ready is the source's: it tells
// why the store may not be whole.
type sink func(ctx context.Context, st *store.Store, ready func() error) error

// part is what else has metrics, and perhaps a say in whether the process is ready.
type part interface {
	Collectors() []prometheus.Collector
}

// start serves the metrics and pages of the parts of a process, and whether all of them are ready.
func start(ctx context.Context, options *process.Options, parts ...part) error {
	var metrics []prometheus.Collector
	for _, p := range parts {
		metrics = append(metrics, p.Collectors()...)
		if h, ok := p.(interface {
			Handlers() map[string]http.Handler
		}); ok {
			for pattern, handler := range h.Handlers() {
				options.Handle(pattern, handler)
			}
		}
	}
	ready := func() (err error) {
		for _, p := range parts {
			if r, ok := p.(interface{ Ready() error }); ok {
				err = errors.Join(err, r.Ready())
			}
		}
		return err
	}
	return options.Start(ctx, ready, metrics...)
}

// run runs the pipeline until ctx ends, its sink is done, or one of its parts cannot go on.
func (p *pipeline) run(ctx context.Context, st *store.Store, to sink, parts ...part) error {
	from, err := p.open()
	if err != nil {
		return err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	if err := start(ctx, p.options, append(parts, from, storePart{st})...); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return from.Run(ctx, st) })
	group.Go(func() error {
		defer done()
		return to(ctx, st, from.Ready)
	})
	return group.Wait()
}

type storePart struct{ store *store.Store }

func (s storePart) Collectors() []prometheus.Collector {
	return []prometheus.Collector{serve.StoreCollector(s.store)}
}
