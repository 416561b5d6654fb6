// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kpng/api/localv1"
)

// Affinity is how long a client of the service stays with its target; 0 when it does not.
func Affinity(svc *localv1.Service) time.Duration {
	clientIP := svc.GetClientIP()
	if clientIP == nil {
		return 0
	}
	return time.Duration(max(1, clientIP.GetTimeoutSeconds())) * time.Second
}

// Sources are who may use an address of the service, by loadBalancerSourceRanges; nil is everybody.
func Sources(svc *localv1.Service, ip netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, filter := range svc.GetIPFilters() {
		if !contains(filter.GetTargetIPs(), ip) {
			continue
		}
		if list == nil {
			list = []netip.Prefix{}
		}
		for _, text := range filter.GetSourceRanges() {
			// A range that cannot be read admits nobody.
			if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is6() == ip.Is6() && !p.Addr().Is4In6() {
				list = append(list, p.Masked())
			}
		}
	}
	return list
}

// contains knows an IPv4 address that is written as an IPv6 one, too.
func contains(set *localv1.IPSet, ip netip.Addr) bool {
	for _, text := range set.All() {
		if a, err := netip.ParseAddr(text); err == nil && a.Unmap() == ip {
			return true
		}
	}
	return false
}

// EndpointIP is the address of an endpoint in a family. When there are several, each of them is the same endpoint (as
// the EndpointSlice API has it), and the first is as good as any.
func EndpointIP(ep *localv1.Endpoint, v6 bool) (netip.Addr, bool) {
	for _, ip := range Addresses(ep.GetIPs(), v6) {
		if !IsSpecial(ip) {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

// Addresses are those of one family. What is no address, or has a zone, is nobody's.
func Addresses(set *localv1.IPSet, v6 bool) []netip.Addr {
	list := set.GetV4()
	if v6 {
		list = set.GetV6()
	}
	ips := make([]netip.Addr, 0, len(list))
	for _, text := range list {
		ip, err := netip.ParseAddr(text)
		if err == nil && ip.Is6() == v6 && !ip.Is4In6() && ip.Zone() == "" {
			ips = append(ips, ip)
		}
	}
	return ips
}
