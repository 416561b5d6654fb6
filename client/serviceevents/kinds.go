// SPDX-License-Identifier: Apache-2.0

package serviceevents

import "strconv"

// IPKind says where a service has an address from.
type IPKind int

// The kinds of addresses.
const (
	ClusterIP IPKind = iota
	ExternalIP
	LoadBalancerIP
)

func (k IPKind) String() string {
	switch k {
	case ClusterIP:
		return "ClusterIP"
	case ExternalIP:
		return "ExternalIP"
	case LoadBalancerIP:
		return "LoadBalancerIP"
	default:
		return "IPKind(" + strconv.Itoa(int(k)) + ")"
	}
}

// TrafficPolicyKind says which traffic a policy is about.
type TrafficPolicyKind int

// The kinds of traffic policies. A policy is enabled when the traffic goes to local endpoints only.
const (
	// TrafficPolicyInternal is about traffic to cluster IPs (KEP-2086).
	TrafficPolicyInternal TrafficPolicyKind = iota
	// TrafficPolicyExternal is about traffic to node ports, external IPs and load-balancer IPs.
	TrafficPolicyExternal
)

func (k TrafficPolicyKind) String() string {
	switch k {
	case TrafficPolicyInternal:
		return "TrafficPolicyInternal"
	case TrafficPolicyExternal:
		return "TrafficPolicyExternal"
	default:
		return "TrafficPolicyKind(" + strconv.Itoa(int(k)) + ")"
	}
}
