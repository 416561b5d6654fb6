// SPDX-License-Identifier: Apache-2.0

//go:build linux

package proxy

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/driver"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
)

// Cmd is the part of a backend's command that all have. Its life:
//
//  1. New, BindFlags, and once the flags are parsed Validate.
//  2. Prepare starts it (or else the first request of the Sink's): it looks whether the node can forward, and at the
//     node's addresses. With --cleanup, or when something is wrong, that is the end already.
//  3. The first whole state replaces what earlier runs wrote; what changes later is written as it comes.
//  4. Finish ends it.
type Cmd struct {
	spec Spec
	// Out is where --dry-run prints, standard output when nil.
	Out io.Writer

	Guard   Guard
	Options driver.Options

	sink      localsink.Config
	addresses nodeAddresses
	metrics   *metrics

	session *driver.Session
	core    *core
	stop    context.CancelFunc
	ended   error // what WaitRequest returns from now on
}

// Spec is what a backend brings along.
type Spec struct {
	// Owner names everything that is written.
	Owner string
	// Flags are the backend's own.
	Flags Flags
	// Preferred is what programs the kernel when no flag says otherwise.
	Preferred driver.Dataplane
	// AllEndpoints asks for those too that get no new traffic.
	AllEndpoints bool
	// Dataplane are the writer's options, without the owner; asked for when the flags are parsed.
	Dataplane func() dataplane.Options
	// Rules is asked for when the flags are parsed.
	Rules func() Rules
	// Start, if not nil, is called when the backend starts. ctx ends with the backend.
	Start func(ctx context.Context) error
	// Observe, if not nil, is called with each change of services, after it was handed on.
	Observe func([]changes.Change)
	// Moved, if not nil, is called with the node's addresses, and when they change.
	Moved func(map[netip.Addr]bool)
}

// Flags are flags that can be wrong.
type Flags interface {
	BindFlags(flags *pflag.FlagSet)
	Validate() error
}

// New returns the command with its defaults.
func New(spec Spec) *Cmd {
	return &Cmd{spec: spec, addresses: kernelAddresses{}, metrics: newMetrics(spec.Owner)}
}

var _ interface {
	backendcmd.Cmd
	backendcmd.Preparer
	backendcmd.Finisher
} = &Cmd{}

// BindFlags implements backendcmd.Cmd.
func (c *Cmd) BindFlags(flags *pflag.FlagSet) {
	c.spec.Flags.BindFlags(flags)
	c.Guard.BindFlags(flags)
	c.Options.BindFlags(flags, c.spec.Preferred)
	c.sink.BindFlags(flags)
}

// Validate reports every fault of the flags at once.
func (c *Cmd) Validate() error {
	return errors.Join(c.spec.Flags.Validate(), c.Guard.Allow.Parse(), c.Options.Validate())
}

// Collectors are the metrics.
func (c *Cmd) Collectors() []prometheus.Collector {
	return append(c.metrics.collectors(), c.Options.Collectors()...)
}

// Ready tells why the kernel is not as it should be, or nil.
func (c *Cmd) Ready() error { return c.Options.Ready() }

// Prepare implements backendcmd.Preparer.
func (c *Cmd) Prepare(context.Context) error {
	if c.ended == nil && c.session == nil {
		c.ended = c.start()
	}
	return c.ended
}

// Sink implements backendcmd.Cmd.
func (c *Cmd) Sink() localsink.Sink {
	s := changes.New(&c.sink, c.update)
	s.AllEndpoints, s.TriggerTimes = c.spec.AllEndpoints, true
	return &sink{s, c}
}

// sink starts the backend before the first request, if nobody did, and ends the client when the backend has ended.
type sink struct {
	*changes.Sink
	cmd *Cmd
}

func (s *sink) WaitRequest() (string, error) {
	if err := s.cmd.Prepare(context.Background()); err != nil {
		return "", err
	}
	return s.Sink.WaitRequest()
}

func (c *Cmd) start() error {
	if err := c.Validate(); err != nil {
		return err // for callers that did not ask
	}
	ctx, stop := context.WithCancel(context.Background())
	if err := c.open(ctx); err != nil {
		stop()
		return err // also localsink.ErrStop, after --cleanup
	}
	c.stop = stop
	return nil
}

func (c *Cmd) open(ctx context.Context) error {
	opts := c.spec.Dataplane()
	opts.Owner = c.spec.Owner
	session, err := c.Options.Open(ctx, opts)
	if err != nil {
		return err
	}
	if c.spec.Start != nil && !c.Options.DryRun {
		if err := c.spec.Start(ctx); err != nil {
			return err
		}
	}
	c.core = newCore(c.spec.Rules(), &c.Guard, c.metrics)
	// The first call comes before there are services, so it tells nothing.
	err = c.addresses.Watch(ctx, func(addrs map[netip.Addr]bool) {
		c.core.setNode(addrs, session.Update)
		if c.spec.Moved != nil {
			c.spec.Moved(addrs)
		}
	})
	if err != nil {
		return err
	}
	c.session = session
	return nil
}

func (c *Cmd) update(list []changes.Change) error {
	if c.ended != nil {
		return c.ended
	}
	c.core.update(list, func(changes []dataplane.Change) { c.session.UpdateSince(changes, triggers(list)) })
	if c.spec.Observe != nil {
		c.spec.Observe(list)
	}
	if c.Options.DryRun {
		out := c.Out
		if out == nil {
			out = os.Stdout
		}
		if c.ended = c.session.Print(out); c.ended == nil {
			c.ended = localsink.ErrStop
		}
	}
	return c.ended
}

// triggers are the times when what made services change happened, as far as they are known.
func triggers(list []changes.Change) map[string]time.Time {
	var times map[string]time.Time
	for _, c := range list {
		if c.TriggeredAt.IsZero() {
			continue
		}
		if times == nil {
			times = map[string]time.Time{}
		}
		times[c.Item.Service.NamespacedName()] = c.TriggeredAt
	}
	return times
}

// Finish implements backendcmd.Finisher.
func (c *Cmd) Finish(ctx context.Context) error {
	if c.session == nil {
		return nil
	}
	c.stop()
	return c.session.Close(ctx)
}
