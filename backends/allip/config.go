// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/backends/internal/proxy"
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
	ClusterCIDRs proxy.Prefixes
}

// BindFlags binds --scope, --egress-snat and --cluster-cidrs.
func (c *Config) BindFlags(flags *pflag.FlagSet) {
	flags.StringVar((*string)(&c.Scope), "scope", string(ScopeLocal),
		"endpoints to use: local (those on this node), or cluster (also those on other nodes, masqueraded, when there is no local one)")
	flags.BoolVar(&c.EgressSNAT, "egress-snat", false,
		"connections that a served pod opens to the outside leave with the service's external IP; needs --cluster-cidrs")
	c.ClusterCIDRs.Bind(flags, "cluster-cidrs", "`CIDRs` of pods, services and nodes: --egress-snat leaves connections to them alone")
}

// Validate parses what is still text and reports every fault at once.
func (c *Config) Validate() error {
	errs := []error{c.ClusterCIDRs.Parse()}
	if c.Scope != ScopeLocal && c.Scope != ScopeCluster {
		errs = append(errs, fmt.Errorf("--scope=%s: want local or cluster", c.Scope))
	}
	if c.EgressSNAT && !c.ClusterCIDRs.Given() {
		errs = append(errs, errors.New("--egress-snat needs --cluster-cidrs: the prefixes of pods, services and nodes, connections to which must keep their address"))
	}
	return errors.Join(errs...)
}
