// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/driver"
	"sigs.k8s.io/kpng/backends/internal/proxy"
	"sigs.k8s.io/kpng/backends/nat/health"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

func init() {
	backendcmd.Register("to-nat", func() backendcmd.Cmd { return New() })
}

// Cmd is the backend as a command.
type Cmd struct {
	*proxy.Cmd
	config Config
	ports  *health.Ports // nil with --dry-run
}

// New returns the command with its defaults.
func New() *Cmd {
	c := &Cmd{}
	c.Cmd = proxy.New(proxy.Spec{
		Owner: "kpng-nat", Flags: &c.config, Preferred: driver.NFTables, AllEndpoints: true,
		Dataplane: c.dataplane,
		Rules:     func() proxy.Rules { return rules(&c.config) },
		Start:     c.start,
		Observe:   c.observe,
		Moved:     c.moved,
	})
	return c
}

func rules(config *Config) proxy.Rules {
	return proxy.Rules{
		Render: func(item *fullstate.ServiceEndpoints) *dataplane.Service { return render(item, config) },
		Adapt:  adapt,
	}
}

// Describe completes the command that runs the backend.
func (c *Cmd) Describe(cmd *cobra.Command) {
	cmd.Short = "Serve services as kube-proxy does, with nftables or iptables"
	cmd.Long = `Serve the cluster IPs, node ports, external IPs and load-balancer IPs of services, in both IP families, for TCP, UDP and SCTP,
by the rules of kube-proxy: beside it, for the services of a service-proxy-name, or in its place. Rules are written with nftables
or iptables, in a table or chains of their own; they stay when the program ends, unless --cleanup-on-exit is given.`
	cmd.Example = fmt.Sprintf(`  %[1]s --cluster-cidr=10.244.0.0/16,fd00:10:244::/56
  %[1]s --dataplane=iptables
  %[1]s --dry-run
  %[1]s --cleanup`, cmd.CommandPath())
}

// connMark is a bit of connections' marks that no other backend of ours has.
const connMark = 0x2000

func (c *Cmd) dataplane() dataplane.Options {
	return dataplane.Options{
		Priority:      5,
		ConnMark:      connMark,
		ClusterCIDRs:  c.config.ClusterCIDR.List,
		NodePortCIDRs: c.config.NodePortAddresses.List,
		DropInvalid:   dropsInvalid(),
	}
}

// beLiberal is a setting with which connection tracking calls nothing invalid for being outside of a TCP window; then
// there is nothing to drop, and what is called invalid else may be of use to others.
const beLiberal = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"

func dropsInvalid() bool {
	content, err := os.ReadFile(beLiberal)
	return err != nil || strings.TrimSpace(string(content)) != "1"
}

func (c *Cmd) start(ctx context.Context) error {
	c.ports = health.NewPorts(ctx, c.healthy)
	if c.config.HealthzListen == "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.config.HealthzListen)
	if err != nil {
		return fmt.Errorf("--healthz-listen: %w", err)
	}
	server := &http.Server{Handler: health.Node(c.healthy), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "/healthz is not served any more")
		}
	}()
	return nil
}

// healthy tells whether the node's rules are true.
func (c *Cmd) healthy() bool { return c.Options.Alive() }

func (c *Cmd) observe(list []changes.Change) {
	if c.ports != nil {
		observe(c.ports, list)
	}
}

func (c *Cmd) moved(node map[netip.Addr]bool) {
	if c.ports != nil {
		c.ports.Listen(c.config.listenAt(node))
	}
}

// Handlers are the pages that the command serves beside its metrics: /proxyMode tells what programs the kernel, as
// kube-proxy's does.
func (c *Cmd) Handlers() map[string]http.Handler {
	return map[string]http.Handler{"/proxyMode": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, string(c.Options.Dataplane)) // who asked may have left
	})}
}
