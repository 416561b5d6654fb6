// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Reason says why an address is not served. It is the label of a metric, so there are few.
type Reason string

// The reasons.
const (
	// ReasonSpecial: loopback, link-local, multicast, broadcast and unspecified addresses are never a service's own.
	ReasonSpecial Reason = "special"
	// ReasonNode: the address is one of this node, and all of its traffic would be taken.
	ReasonNode Reason = "node-address"
	// ReasonNotAllowed: the address is in none of --allow-cidrs.
	ReasonNotAllowed Reason = "not-in-allow-cidrs"
)

var reasons = []Reason{ReasonSpecial, ReasonNode, ReasonNotAllowed}

// remedy says what who reads the log can do about it.
func (r Reason) remedy() string {
	switch r {
	case ReasonNode:
		return "it is an address of this node; give the service another one, or run with --allow-node-ips"
	case ReasonNotAllowed:
		return "it is in none of --allow-cidrs; give the service another one, or allow it"
	default:
		return "it is a loopback, link-local, multicast, broadcast or unspecified address; give the service another one"
	}
}

// Guard decides which external and load-balancer IPs may be served. An external IP is whatever someone who may write a
// Service put there (CVE-2020-8554). Cluster IPs and node ports are given out by the API server.
type Guard struct {
	Allow        Prefixes
	AllowNodeIPs bool
}

// BindFlags binds --allow-cidrs and --allow-node-ips.
func (g *Guard) BindFlags(flags *pflag.FlagSet) {
	g.Allow.Bind(flags, "allow-cidrs",
		"`CIDRs` of the external and load-balancer IPs that may be served; without, all are, and whoever may write a Service can take the traffic of any address (CVE-2020-8554)")
	flags.BoolVar(&g.AllowNodeIPs, "allow-node-ips", false,
		"take all traffic of an address, where a service wants that, also when the address is one of this node; SSH goes to the pod then")
}

// refuse returns why a frontend must not be served by a node that has these addresses; "" when it may be.
func (g *Guard) refuse(f *dataplane.Frontend, node map[netip.Addr]bool) Reason {
	if f.Kind != dataplane.ExternalIP && f.Kind != dataplane.LoadBalancerIP {
		return ""
	}
	switch {
	case IsSpecial(f.IP):
		return ReasonSpecial
	case len(g.Allow.List) != 0 && !g.Allow.Contains(f.IP):
		return ReasonNotAllowed
	case !g.AllowNodeIPs && f.Protocol == dataplane.Any && node[f.IP]:
		return ReasonNode
	default:
		return ""
	}
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// IsSpecial tells whether an address is loopback, link-local, multicast, broadcast or unspecified, and so never a
// service's or a pod's own. It knows an IPv4 address that is written as an IPv6 one, too.
func IsSpecial(ip netip.Addr) bool {
	ip = ip.Unmap()
	return !ip.IsValid() || ip.Zone() != "" || ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() ||
		ip.IsLinkLocalUnicast() || ip == broadcast || (ip.Is4() && ip.As4()[0] == 0)
}
