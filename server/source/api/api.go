// SPDX-License-Identifier: Apache-2.0

// Package api is the source that follows another kpng: its globalv1 stream becomes the state of our store. So one
// central kpng, the only one to watch the Kubernetes API, can serve a kpng on each of many nodes.
package api

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/tlsflags"
	"sigs.k8s.io/kpng/server/store"
)

// maxDelay bounds the wait between two attempts; --error-delay is the shortest one.
const maxDelay = 10 * time.Second

// Config says which kpng to follow. Its flags are those of every client of kpng.
type Config struct{ client client.LocalClient }

// BindFlags binds --api, --tls-key, --tls-crt, --tls-ca, --error-delay and --max-msg-size.
func (c *Config) BindFlags(flags *pflag.FlagSet) {
	c.client.TLS = &tlsflags.Flags{}
	c.client.DefaultFlags(flags)
}

// Validate reports TLS files that cannot be used.
func (c *Config) Validate() error {
	return c.client.TLS.Validate()
}

// Source follows another kpng. Make one with [New].
type Source struct {
	config   *Config
	failures prometheus.Counter

	mu    sync.Mutex
	stale error // why what the store holds may be out of date; nil when it is not
}

// New checks the configuration.
func New(config *Config) (*Source, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Source{
		config: config,
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kpng_source_api_failures_total",
			Help: "Streams from the kpng that is followed that failed.",
		}),
		stale: fmt.Errorf("no state from %s yet", config.client.Target),
	}, nil
}

// Collectors are the metrics of the source.
func (s *Source) Collectors() []prometheus.Collector { return []prometheus.Collector{s.failures} }

// Ready tells why the state may be out of date, or nil.
func (s *Source) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

func (s *Source) setStale(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = reason
}

// Run follows until ctx ends. While the other kpng is away, the store keeps the last whole state.
func (s *Source) Run(ctx context.Context, st *store.Store) error {
	conn, err := s.config.client.DialContext(ctx)
	if err != nil {
		return fmt.Errorf("--api %s: %w", s.config.client.Target, err)
	}
	defer func() { _ = conn.Close() }()

	f := newFollower(st)
	first := s.config.client.ErrorDelay
	if first <= 0 {
		first = client.DefaultErrorDelay
	}
	for delay := first; ctx.Err() == nil; delay = min(2*delay, maxDelay) {
		synced, err := s.follow(ctx, conn, f)
		if ctx.Err() != nil {
			break
		}
		s.failures.Inc()
		klog.ErrorS(err, "Stream failed; the last state is kept", "api", s.config.client.Target)
		s.setStale(fmt.Errorf("stale since %s: %w", time.Now().Format(time.RFC3339), err))
		if synced {
			delay = first
		}
		sleep(ctx, delay)
	}
	return nil
}

// sleep waits for about that long, so that many who lost the same server do not come back at the same moment.
func sleep(ctx context.Context, about time.Duration) {
	select {
	case <-time.After(about/2 + rand.N(about+1)):
	case <-ctx.Done():
	}
}

// follow reads one stream until it fails, and says whether it had delivered a whole state.
func (s *Source) follow(ctx context.Context, conn *grpc.ClientConn, f *follower) (synced bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := globalv1.NewSetsClient(conn).Watch(ctx)
	if err != nil {
		return false, err
	}
	f.begin()
	for {
		if err := stream.Send(&globalv1.GlobalWatchReq{AcceptBatch: true, TriggerTimes: true}); err != nil {
			_, recvErr := stream.Recv() // Send only says EOF; the reason is here
			return synced, errors.Join(recvErr, err)
		}
		for {
			op, err := stream.Recv()
			if err != nil {
				return synced, err
			}
			if f.apply(op) {
				break
			}
		}
		if !synced {
			klog.InfoS("In sync", "api", s.config.client.Target)
			s.setStale(nil)
		}
		synced = true
	}
}
