// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"net/netip"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/proxy"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// render is all that a service asks for: every external and load-balancer IP, for the endpoints of its family. It is
// pure. A service without such an address is nil. An address without an endpoint to use is rendered too, so that the
// service keeps its claim to it, with an empty pool: see finish.
func render(item *fullstate.ServiceEndpoints, config *Config) *dataplane.Service {
	svc := item.Service
	s := &dataplane.Service{Name: svc.NamespacedName()}
	affinity := proxy.Affinity(svc)
	var pools [2]dataplane.Pool // by family
	for i := range pools {
		pools[i] = pool(item.Endpoints, i == 1, config.Scope)
	}
	seen := map[netip.Addr]bool{}
	add := func(kind dataplane.Kind, ips *localv1.IPSet) {
		for _, text := range ips.All() {
			ip, err := netip.ParseAddr(text)
			if err != nil || seen[ip.Unmap()] {
				continue
			}
			ip = ip.Unmap()
			seen[ip] = true
			f := dataplane.Frontend{Kind: kind, IP: ip, Protocol: dataplane.Any, Pool: pools[family(ip)], Affinity: affinity}
			f.Sources = proxy.Sources(svc, ip)
			if !allLocal(f.Pool) {
				f.Masquerade = dataplane.Always // or the answers would go to the client without us
			}
			s.Frontends = append(s.Frontends, f)
		}
	}
	add(dataplane.ExternalIP, svc.GetIPs().GetExternalIPs())
	add(dataplane.LoadBalancerIP, svc.GetIPs().GetLoadBalancerIPs())
	if len(s.Frontends) == 0 {
		return nil
	}
	s.Normalize()
	return s
}

// family indexes what there is of each family.
func family(ip netip.Addr) int {
	if ip.Is6() {
		return 1
	}
	return 0
}

// pool is the endpoints to use: those on this node; without one, and with scope cluster, the others.
func pool(endpoints []*localv1.Endpoint, v6 bool, scope Scope) dataplane.Pool {
	var local, remote, draining []dataplane.Target
	seen := map[netip.Addr]bool{}
	for _, ep := range endpoints {
		// Any packet is meant, so an endpoint that may be used for any kind of traffic may be used.
		usable := ep.GetScopes().Any()
		if !usable && !ep.GetTerminating() {
			continue
		}
		ip, ok := proxy.EndpointIP(ep, v6)
		if !ok || seen[ip] {
			continue
		}
		seen[ip] = true
		target := dataplane.Target{IP: ip, Local: ep.GetLocal(), Terminating: ep.GetTerminating()}
		switch {
		case !usable:
			draining = append(draining, target) // it still serves what it has
		case target.Local:
			local = append(local, target)
		default:
			remote = append(remote, target)
		}
	}
	if len(local) == 0 && scope == ScopeCluster {
		local = remote
	}
	return dataplane.Pool{Targets: local, Draining: draining}
}

func allLocal(p dataplane.Pool) bool {
	for _, t := range p.Targets {
		if !t.Local {
			return false
		}
	}
	return true
}

// egress gives each pod on this node one of the service's addresses of its family: the lowest external IP, as who wrote
// the service chose it, or else the lowest load-balancer IP.
func egress(frontends []dataplane.Frontend, config *Config) []dataplane.Egress {
	var chosen [2]*dataplane.Frontend
	for i := range frontends {
		f := &frontends[i]
		if !config.ClusterCIDRs.Knows(f.IP.Is6()) {
			continue // everything would be outside: connections between pods would leave as the service too
		}
		best := chosen[family(f.IP)]
		if best == nil || f.Kind < best.Kind || (f.Kind == best.Kind && f.IP.Less(best.IP)) {
			chosen[family(f.IP)] = f
		}
	}
	var list []dataplane.Egress
	for _, f := range chosen {
		if f == nil {
			continue
		}
		for _, t := range f.Pool.Targets {
			if t.Local {
				list = append(list, dataplane.Egress{Source: t.IP, IP: f.IP})
			}
		}
	}
	return list
}

// finish is what the kernel does for a service that has these addresses. Those that there is no endpoint for are left
// out: all-ip takes the packets of an address to give them to a pod, and otherwise they go where they would go anyway, as
// to another node that has one. The service is not changed.
func finish(s *dataplane.Service, config *Config) *dataplane.Service {
	out := &dataplane.Service{Name: s.Name}
	for i := range s.Frontends {
		if len(s.Frontends[i].Pool.Targets) != 0 {
			out.Frontends = append(out.Frontends, s.Frontends[i])
		}
	}
	if len(out.Frontends) == 0 {
		return nil
	}
	if config.EgressSNAT {
		out.Egress = egress(out.Frontends, config)
		out.Normalize()
	}
	return out
}
