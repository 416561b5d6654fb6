// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/driver"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
)

func init() {
	backendcmd.Register("to-allip", func() backendcmd.Cmd { return New() })
}

// owner is what everything that we write is named after.
const owner = "kpng-allip"

// Cmd is the backend as a command. Its life:
//
//  1. New, BindFlags, and once the flags are parsed Validate.
//  2. The first request of the Sink's starts it: it looks whether the node can forward, and at the node's addresses.
//     With --cleanup, or when something is wrong, that is the end already.
//  3. The first whole state replaces what earlier runs wrote; what changes later is written as it comes.
//  4. Finish ends it.
type Cmd struct {
	// Out is where --dry-run prints, standard output when nil.
	Out io.Writer

	config  Config
	options driver.Options
	sink    localsink.Config

	addresses nodeAddresses
	metrics   *metrics

	session *driver.Session
	core    *core
	stop    context.CancelFunc
	ended   error // what WaitRequest returns from now on
}

// New returns the command with its defaults.
func New() *Cmd { return &Cmd{addresses: kernelAddresses{}, metrics: newMetrics()} }

var _ interface {
	backendcmd.Cmd
	backendcmd.Finisher
} = &Cmd{}

// Describe completes the command that runs the backend.
func (c *Cmd) Describe(cmd *cobra.Command) {
	cmd.Short = "Send every packet of an external IP to a pod on this node"
	cmd.Long = `Send every packet to an external IP or load-balancer IP of a service, whatever its protocol and port, to a pod of the
service on this node. The client's address stays. Rules are written with iptables or nftables, in chains of their own; they
stay when the program ends, unless --cleanup-on-exit is given.`
	cmd.Example = fmt.Sprintf(`  %[1]s --allow-cidrs=192.0.2.0/24,2001:db8::/64
  %[1]s --dry-run
  %[1]s --cleanup`, cmd.CommandPath())
}

// BindFlags implements backendcmd.Cmd.
func (c *Cmd) BindFlags(flags *pflag.FlagSet) {
	c.config.BindFlags(flags)
	c.options.BindFlags(flags, driver.IPTables)
	c.sink.BindFlags(flags)
}

// Validate reports every fault of the flags at once.
func (c *Cmd) Validate() error { return errors.Join(c.config.Validate(), c.options.Validate()) }

// Collectors are the metrics.
func (c *Cmd) Collectors() []prometheus.Collector {
	return append(c.metrics.collectors(), c.options.Collectors()...)
}

// Ready tells why the kernel is not as it should be, or nil.
func (c *Cmd) Ready() error { return c.options.Ready() }

// Sink implements backendcmd.Cmd.
func (c *Cmd) Sink() localsink.Sink { return &sink{changes.New(&c.sink, c.update), c} }

// sink starts the backend before the first request, and ends the client when the backend has ended.
type sink struct {
	*changes.Sink
	cmd *Cmd
}

func (s *sink) WaitRequest() (string, error) {
	if s.cmd.ended == nil && s.cmd.session == nil {
		s.cmd.ended = s.cmd.start()
	}
	if s.cmd.ended != nil {
		return "", s.cmd.ended
	}
	return s.Sink.WaitRequest()
}

func (c *Cmd) start() error {
	if err := c.Validate(); err != nil {
		return err // for callers that did not ask
	}
	ctx, stop := context.WithCancel(context.Background())
	session, err := c.options.Open(ctx, dataplane.Options{Owner: owner, Priority: 4, ClusterCIDRs: c.config.ClusterCIDRs})
	if err != nil {
		stop()
		return err // also localsink.ErrStop, after --cleanup
	}
	if len(c.config.AllowCIDRs) == 0 {
		klog.InfoS("WARNING: without --allow-cidrs, whoever may write a Service can take the traffic of any address through its external IPs (CVE-2020-8554)")
	}
	c.core = newCore(&c.config, c.metrics)
	// The first call comes before there are services, so it tells nothing.
	err = c.addresses.Watch(ctx, func(addrs map[netip.Addr]bool) { c.core.setNode(addrs, session.Update) })
	if err != nil {
		stop()
		return err
	}
	c.session, c.stop = session, stop
	return nil
}

func (c *Cmd) update(list []changes.Change) error {
	if c.ended != nil {
		return c.ended
	}
	c.core.update(list, c.session.Update)
	if c.options.DryRun {
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

// Finish implements backendcmd.Finisher.
func (c *Cmd) Finish(ctx context.Context) error {
	if c.session == nil {
		return nil
	}
	c.stop()
	return c.session.Close(ctx)
}
