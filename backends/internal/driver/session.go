// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/conntrack"
	"sigs.k8s.io/kpng/backends/internal/dataplane/iptables"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
	"sigs.k8s.io/kpng/client/localsink"
)

// cleanupTimeout bounds a cleanup that is not to be broken off when the run ends.
const cleanupTimeout = 20 * time.Second

// Session is one run of a backend, as its flags say.
type Session struct {
	options *Options
	writer  dataplane.Writer
	driver  *Driver // nil with --dry-run

	mu  sync.Mutex
	dry map[string]*dataplane.Service // with --dry-run: what would be written
}

// Open starts a run. With --cleanup it does that and returns localsink.ErrStop. Otherwise the node must be one that
// forwards packets.
func (o *Options) Open(ctx context.Context, d dataplane.Options) (*Session, error) {
	writer, other, err := o.writers(d)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Cleanup:
		if err := errors.Join(writer.Cleanup(ctx), cleanup(ctx, other)); err != nil {
			return nil, fmt.Errorf("--cleanup: %w", err)
		}
		return nil, localsink.ErrStop
	case o.DryRun:
		return &Session{options: o, writer: writer, dry: map[string]*dataplane.Service{}}, nil
	}
	if err := sysctls("/proc/sys").ensureForwarding(o.SetSysctls, hasIPv6()); err != nil {
		return nil, err
	}
	flows := cleaner{conntrack.Cleaner{ResetTCP: o.ResetTCP, NodePortCIDRs: d.NodePortCIDRs, OwnConnMark: d.ConnMark}}
	o.shared().start(writer, flows, func(ctx context.Context) {
		// What a run with the other dataplane wrote would still redirect, with targets that are not true any more.
		if err := cleanup(ctx, other); err != nil {
			klog.ErrorS(err, "Removing what the other dataplane may have written")
		}
		debug.FreeOSMemory() // the first state took several times what it takes to hold it
	})
	return &Session{options: o, writer: writer, driver: o.shared()}, nil
}

// cleaner is conntrack's, which is told of services only: what else it may take for left over has to wait until all are
// written.
type cleaner struct{ conntrack.Cleaner }

func (c cleaner) CleanAll(ctx context.Context, services []*dataplane.Service, complete bool) (int, error) {
	if !complete {
		c.OwnConnMark = 0
	}
	return c.Cleaner.CleanAll(ctx, services)
}

// writers are the one that was asked for, and the other.
func (o *Options) writers(d dataplane.Options) (writer, other dataplane.Writer, err error) {
	ipt, err := iptables.New(d, o.Flavor)
	if err != nil {
		return nil, nil, err
	}
	nft, err := nftables.New(d)
	if err != nil {
		return nil, nil, err
	}
	if o.Dataplane == NFTables {
		return nft, ipt, nil
	}
	return ipt, nft, nil
}

// cleanup is no failure where the kernel has nothing of the kind.
func cleanup(ctx context.Context, w dataplane.Writer) error {
	if err := w.Cleanup(ctx); err != nil && !errors.Is(err, dataplane.ErrUnsupported) {
		return err
	}
	return nil
}

// shared is the driver, which is there before the run, as metrics are asked for before it.
func (o *Options) shared() *Driver {
	if o.driver == nil {
		o.driver = newDriver()
	}
	return o.driver
}

// Collectors are the metrics.
func (o *Options) Collectors() []prometheus.Collector { return o.shared().Collectors() }

// Ready tells why the kernel is not as desired, or nil.
func (o *Options) Ready() error { return o.shared().Ready() }

// Alive tells whether the kernel follows, but for services that it refuses: what a load balancer wants to know of a
// node. One bad service, which all nodes have, must not take all of them away.
func (o *Options) Alive() bool { return o.shared().ledger.alive() }

// Update takes changes of what the kernel is to do; Old is not looked at.
func (s *Session) Update(changes []dataplane.Change) { s.UpdateSince(changes, nil) }

// UpdateSince is Update, and tells when that happened in the cluster which made a service change, by its name, for
// those of which it is known. From then on the time is measured until the kernel has the change.
func (s *Session) UpdateSince(changes []dataplane.Change, triggers map[string]time.Time) {
	if s.driver != nil {
		s.driver.Update(changes, triggers)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if c.New == nil {
			delete(s.dry, c.Name())
		} else {
			s.dry[c.Name()] = c.New
		}
	}
}

// Print writes what would be written to the kernel.
func (s *Session) Print(out io.Writer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var services []*dataplane.Service
	for _, name := range slices.Sorted(maps.Keys(s.dry)) {
		services = append(services, s.dry[name])
	}
	_, err := io.WriteString(out, s.writer.Text(services))
	return err
}

// Close ends the run: it waits until the kernel is as desired, unless ctx ends, and cleans up with --cleanup-on-exit.
func (s *Session) Close(ctx context.Context) error {
	if s.driver == nil {
		return nil
	}
	var err error
	if ctx.Err() == nil {
		err = s.driver.Settle(ctx)
	}
	s.driver.Stop()
	if !s.options.CleanupOnExit {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return errors.Join(err, s.writer.Cleanup(ctx))
}
