// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"net/netip"
	"slices"
)

// Reason says why an address is not served. It is the label of a metric, so there are few.
type Reason string

// The reasons.
const (
	// ReasonSpecial: loopback, link-local, multicast, broadcast and unspecified addresses are never a service's own.
	ReasonSpecial Reason = "special"
	// ReasonNode: the address is one of this node.
	ReasonNode Reason = "node-address"
	// ReasonNotAllowed: the address is in none of --allow-cidrs.
	ReasonNotAllowed Reason = "not-in-allow-cidrs"
)

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

// guard decides which addresses may be served. An external IP is whatever someone who may write a Service put there
// (CVE-2020-8554), and all-ip takes every port of it.
type guard struct {
	allow        []netip.Prefix // none: all
	allowNodeIPs bool
	node         map[netip.Addr]bool // the addresses of this node
}

// refuse returns why an address must not be served; "" when it may be.
func (g *guard) refuse(ip netip.Addr) Reason {
	switch {
	case isSpecial(ip):
		return ReasonSpecial
	case len(g.allow) != 0 && !slices.ContainsFunc(g.allow, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return ReasonNotAllowed
	case !g.allowNodeIPs && g.node[ip]:
		return ReasonNode
	default:
		return ""
	}
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// isSpecial knows an IPv4 address that is written as an IPv6 one, too.
func isSpecial(ip netip.Addr) bool {
	ip = ip.Unmap()
	return !ip.IsValid() || ip.Zone() != "" || ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() ||
		ip.IsLinkLocalUnicast() || ip == broadcast || (ip.Is4() && ip.As4()[0] == 0)
}
