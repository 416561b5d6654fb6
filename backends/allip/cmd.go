// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allip

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/driver"
	"sigs.k8s.io/kpng/backends/internal/proxy"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

func init() {
	backendcmd.Register("to-allip", func() backendcmd.Cmd { return New() })
}

// connMark is a bit of connections' marks that no other backend of ours has.
const connMark = 0x4000

// Cmd is the backend as a command.
type Cmd struct {
	*proxy.Cmd
	config Config
}

// New returns the command with its defaults.
func New() *Cmd {
	c := &Cmd{}
	c.Cmd = proxy.New(proxy.Spec{
		Owner: "kpng-allip", Flags: &c.config, Preferred: driver.IPTables, AllEndpoints: true,
		Dataplane: func() dataplane.Options {
			return dataplane.Options{Priority: 4, ConnMark: connMark, ClusterCIDRs: c.config.ClusterCIDRs.List}
		},
		Rules: func() proxy.Rules { return rules(&c.config) },
		Start: c.warn,
	})
	return c
}

func rules(config *Config) proxy.Rules {
	return proxy.Rules{
		Render: func(item *fullstate.ServiceEndpoints) *dataplane.Service { return render(item, config) },
		Finish: func(s *dataplane.Service) *dataplane.Service { return finish(s, config) },
	}
}

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

func (c *Cmd) warn(context.Context) error {
	if len(c.Guard.Allow.List) == 0 {
		klog.InfoS("WARNING: without --allow-cidrs, whoever may write a Service can take the traffic of any address through its external IPs (CVE-2020-8554)")
	}
	for family, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		if c.config.EgressSNAT && !c.config.ClusterCIDRs.Knows(v6) {
			klog.InfoS("--egress-snat does not concern this family: --cluster-cidrs has no prefix of it", "family", family)
		}
	}
	return nil
}
