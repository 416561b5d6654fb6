// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/server/store"
)

// Source follows an API server. Make one with [New].
type Source struct {
	session *session
}

// session is what the parts of a source share.
type session struct {
	config  *Config
	client  *client
	metrics *metrics
	health  *health
	mirror  *mirror
	gate    *gate
	failure chan error // capacity 1: why there is no use in going on

	services, slices, nodes *resource
}

// New reads the kubeconfig and the files it names. It does not speak to the API server yet.
func New(cfg *Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	s := &session{
		config: cfg, client: c, metrics: newMetrics(),
		mirror:  newMirror(cfg.CommitDelay, cfg.CommitMaxDelay),
		failure: make(chan error, 1),
	}
	s.services, s.slices, s.nodes = resources()
	s.metrics.fresh(s.services, s.slices, s.nodes)
	s.health = newHealth(s.metrics)
	s.gate = newGate(func() { s.health.speak(); s.mirror.sync() })
	return &Source{session: s}, nil
}

func (s *session) newFeed(name string, k kind, r *resource) *feed {
	return &feed{src: s, name: name, kind: k, resource: r, keys: map[key]struct{}{}}
}

// fail ends Run with an error. The first one counts.
func (s *session) fail(err error) {
	select {
	case s.failure <- err:
	default:
	}
}

// Run follows the API server until ctx ends, and returns nil then. An error means that there is no use in going on: at
// the start the API server could not be reached for the startup timeout, or refuses what is asked of it. Once the
// state was whole, Run no longer fails. It may be called once.
func (s *Source) Run(ctx context.Context, st *store.Store) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	klog.InfoS("Following the API server", "server", s.session.client.host, "selector", s.session.config.Selector())
	for _, f := range s.session.start(ctx, &running) {
		running.Go(func() { f.run(ctx) })
	}
	running.Go(func() { s.session.mirror.run(ctx, st) })
	return s.session.wait(ctx)
}

// start makes the three feeds that there always are.
func (s *session) start(ctx context.Context, running *sync.WaitGroup) []*feed {
	byService := &handwritten{session: s, ctx: ctx, feeds: running, running: map[key]*handwrittenFeed{}}

	services := s.newFeed("services", serviceKind, s.services)
	services.selector, services.seen, services.gone = s.config.Selector(), byService.seen, byService.gone
	slices := s.newFeed("endpointslices", sliceKind, s.slices)
	slices.selector = s.config.Selector()
	nodes := s.newFeed("nodes", nodeKind, s.nodes)

	feeds := []*feed{services, slices, nodes}
	for _, f := range feeds {
		f.needed = true
		s.gate.add(f)
	}
	return feeds
}

// wait returns when ctx ends or there is no use in going on.
func (s *session) wait(ctx context.Context) error {
	deadline := time.NewTimer(s.config.StartupTimeout)
	defer deadline.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failure:
			return err
		case <-deadline.C:
			awaited := s.gate.awaited()
			if len(awaited) == 0 {
				continue
			}
			if err := s.unreachable(); err != nil {
				return err
			}
			klog.InfoS("Still waiting for the API server's first answers", "awaited", strings.Join(awaited, ", "))
			deadline.Reset(s.config.StartupTimeout)
		}
	}
}

// unreachable tells why the state is not whole after the startup timeout; nil when it is on its way.
func (s *session) unreachable() error {
	err := s.health.cause()
	if err == nil && s.client.heard.Load() == 0 {
		err = errNoAnswer
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot reach the API server %s within %s (--startup-timeout): %w", s.client.host, s.config.StartupTimeout, err)
}

// Ready returns nil when the state is whole and follows the API server, and the reason otherwise.
func (s *Source) Ready() error {
	err := s.session.health.err()
	if awaited := s.session.gate.awaited(); len(awaited) != 0 {
		waiting := "not synced: waiting for " + strings.Join(awaited, ", ")
		if err != nil {
			return fmt.Errorf("%s: %w", waiting, err)
		}
		return errors.New(waiting)
	}
	if err != nil {
		return fmt.Errorf("stale: %w", err)
	}
	return nil
}

// Collectors returns the metrics of the source.
func (s *Source) Collectors() []prometheus.Collector { return s.session.metrics.collectors() }
