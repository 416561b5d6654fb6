// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/backends/internal/proxy"
)

// Config is what the flags say about which packets go where.
type Config struct {
	ClusterCIDR       proxy.Prefixes
	NodePortAddresses proxy.Prefixes
	MasqueradeAll     bool
	HealthzListen     string
}

// BindFlags binds --cluster-cidr, --nodeport-addresses, --masquerade-all and --healthz-listen.
func (c *Config) BindFlags(flags *pflag.FlagSet) {
	c.ClusterCIDR.Bind(flags, "cluster-cidr",
		"`CIDRs` of the cluster's pods. Their traffic is not external: externalTrafficPolicy Local does not concern it, and pods see its source")
	c.NodePortAddresses.Bind(flags, "nodeport-addresses",
		"`CIDRs` of this node's addresses to serve node ports and health check node ports at; without, at all but loopback")
	flags.BoolVar(&c.MasqueradeAll, "masquerade-all", false,
		"hide the source of all traffic to cluster IPs, for networks in which pods' answers do not come back by themselves")
	flags.StringVar(&c.HealthzListen, "healthz-listen", "",
		"HOST:PORT to serve /healthz and /livez on as kube-proxy does at :10256, for load balancers that ask there; none when empty")
}

// Validate parses what is still text and reports every fault at once.
func (c *Config) Validate() error {
	errs := []error{c.ClusterCIDR.Parse(), c.NodePortAddresses.Parse()}
	if c.HealthzListen != "" {
		if _, _, err := net.SplitHostPort(c.HealthzListen); err != nil {
			errs = append(errs, fmt.Errorf("--healthz-listen=%s: want HOST:PORT, such as 0.0.0.0:10256", c.HealthzListen))
		}
	}
	return errors.Join(errs...)
}
