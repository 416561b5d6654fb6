// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
)

// Scope says which endpoints may be used.
type Scope string

// The scopes.
const (
	// ScopeLocal: endpoints on this node only; without one, packets go where they would go anyway.
	ScopeLocal Scope = "local"
	// ScopeCluster: endpoints on other nodes too, when there is none on this one.
	ScopeCluster Scope = "cluster"
)

// Config is what the flags say about which packets go where.
type Config struct {
	Scope        Scope
	EgressSNAT   bool
	ClusterCIDRs []netip.Prefix
	AllowCIDRs   []netip.Prefix
	AllowNodeIPs bool

	flags                    *pflag.FlagSet
	clusterCIDRs, allowCIDRs []string // what the flags said; Validate parses it
}

// BindFlags binds --scope, --egress-snat, --cluster-cidrs, --allow-cidrs and --allow-node-ips.
func (c *Config) BindFlags(flags *pflag.FlagSet) {
	c.flags = flags
	flags.StringVar((*string)(&c.Scope), "scope", string(ScopeLocal),
		"endpoints to use: local (those on this node), or cluster (also those on other nodes, masqueraded, when there is no local one)")
	flags.BoolVar(&c.EgressSNAT, "egress-snat", false,
		"connections that a served pod opens to the outside leave with the service's external IP; needs --cluster-cidrs")
	flags.StringSliceVar(&c.clusterCIDRs, "cluster-cidrs", nil,
		"`CIDRs` of pods, services and nodes: --egress-snat leaves connections to them alone")
	flags.StringSliceVar(&c.allowCIDRs, "allow-cidrs", nil,
		"`CIDRs` of the external and load-balancer IPs that may be served; without, all are, and whoever may write a Service can take the traffic of any address (CVE-2020-8554)")
	flags.BoolVar(&c.AllowNodeIPs, "allow-node-ips", false,
		"serve also addresses of this node, which takes everything from it that is sent there, SSH included")
}

// Validate parses what is still text and reports every fault at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Scope != ScopeLocal && c.Scope != ScopeCluster {
		errs = append(errs, fmt.Errorf("--scope=%s: want local or cluster", c.Scope))
	}
	parse := func(flag string, values []string, into *[]netip.Prefix) {
		// An empty list is not the same as none: that of --allow-cidrs would allow everything.
		if c.flags == nil || !c.flags.Changed(flag) {
			return
		}
		prefixes, err := parsePrefixes("--"+flag, values)
		*into = prefixes
		errs = append(errs, err)
	}
	parse("cluster-cidrs", c.clusterCIDRs, &c.ClusterCIDRs)
	parse("allow-cidrs", c.allowCIDRs, &c.AllowCIDRs)
	if c.EgressSNAT && len(c.ClusterCIDRs) == 0 && len(c.clusterCIDRs) == 0 {
		errs = append(errs, errors.New("--egress-snat needs --cluster-cidrs: the prefixes of pods, services and nodes, connections to which must keep their address"))
	}
	return errors.Join(errs...)
}

// parsePrefixes reports every value that is no prefix. A prefix with bits beyond its length is a typing error more
// often than not, so it is one here.
func parsePrefixes(flag string, values []string) ([]netip.Prefix, error) {
	if len(values) == 0 {
		return nil, fmt.Errorf("%s: no prefix given; leave the flag away if that is meant", flag)
	}
	var prefixes []netip.Prefix
	var errs []error
	for _, value := range values {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(value))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %q: want a CIDR such as 192.0.2.0/24 or 2001:db8::/64", flag, value))
		case prefix.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("%s: %s: write an IPv4 prefix as IPv4", flag, prefix))
		case prefix.Masked() != prefix:
			errs = append(errs, fmt.Errorf("%s: %s has bits beyond its length: did you mean %s?", flag, prefix, prefix.Masked()))
		default:
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes, errors.Join(errs...)
}
