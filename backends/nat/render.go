// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/proxy"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// render is all that a service asks for, in both families. It is pure. A service without an address is nil.
func render(item *fullstate.ServiceEndpoints, config *Config) *dataplane.Service {
	r := renderer{
		svc: item.Service, config: config, affinity: proxy.Affinity(item.Service),
		out:  &dataplane.Service{Name: item.Service.NamespacedName()},
		seen: map[dataplane.Key]bool{},
	}
	for _, v6 := range []bool{false, true} {
		r.family(v6, item.Endpoints)
	}
	if len(r.out.Frontends) == 0 {
		return nil
	}
	r.out.Normalize()
	return r.out
}

type renderer struct {
	svc      *localv1.Service
	config   *Config
	affinity time.Duration
	out      *dataplane.Service
	seen     map[dataplane.Key]bool
}

// family renders what one family has. A family in which the service has neither a cluster IP nor an endpoint is not the
// service's, as that of an external IP that was given to a single-stack service, and is left alone.
func (r *renderer) family(v6 bool, endpoints []*localv1.Endpoint) {
	ips := r.svc.GetIPs()
	here := inFamily(endpoints, v6)
	if len(proxy.Addresses(ips.GetClusterIPs(), v6)) == 0 && len(here) == 0 && !ips.GetHeadless() {
		return
	}
	if r.svc.GetMapIP() {
		r.port(v6, port{}, here)
	}
	for _, mapping := range r.svc.GetPorts() {
		p, ok := portOf(mapping)
		if ok {
			r.port(v6, p, here)
		}
	}
}

// port renders one port, or with MapIP all that is sent to an address.
func (r *renderer) port(v6 bool, p port, endpoints []endpoint) {
	b := backendsOf(p, endpoints)
	ips := r.svc.GetIPs()
	if p.mapping == nil || !r.svc.GetMapIP() {
		for _, ip := range proxy.Addresses(ips.GetClusterIPs(), v6) {
			r.add(r.internal(dataplane.ClusterIP, ip, p, b))
		}
		for _, ip := range proxy.Addresses(ips.GetExternalIPs(), v6) {
			r.add(r.external(dataplane.ExternalIP, ip, p, b))
		}
		for _, ip := range proxy.Addresses(ips.GetLoadBalancerIPs(), v6) {
			f := r.external(dataplane.LoadBalancerIP, ip, p, b)
			f.Sources = proxy.Sources(r.svc, ip)
			r.add(f)
		}
	}
	if p.nodePort != 0 {
		p.number = p.nodePort
		f := r.external(dataplane.NodePort, unspecified(v6), p, b)
		if f.Local == nil { // else pods of other nodes would get through what the policy keeps from outside
			f.Masquerade = dataplane.Remote
		}
		r.add(f)
	}
}

// add leaves out what the service has already: one address may be an external IP and a load-balancer IP.
func (r *renderer) add(f dataplane.Frontend) {
	if !r.seen[f.Key()] {
		r.seen[f.Key()] = true
		r.out.Frontends = append(r.out.Frontends, f)
	}
}

func (r *renderer) frontend(kind dataplane.Kind, ip netip.Addr, p port, pool dataplane.Pool) dataplane.Frontend {
	return dataplane.Frontend{
		Kind: kind, IP: ip, Protocol: p.protocol, Port: p.number, Pool: pool,
		Affinity: r.affinity, Masquerade: dataplane.NonLocal,
	}
}

// internal is a frontend that is asked from within the cluster.
func (r *renderer) internal(kind dataplane.Kind, ip netip.Addr, p port, b *backends) dataplane.Frontend {
	pool := b.pool(func(s *localv1.EndpointScopes) bool { return s.GetInternal() })
	pool.Empty = b.emptied(r.svc.GetInternalTrafficToLocal())
	f := r.frontend(kind, ip, p, pool)
	switch {
	case r.config.MasqueradeAll:
		f.Masquerade = dataplane.Always
	case !r.config.ClusterCIDR.Knows(ip.Is6()):
		f.Masquerade = dataplane.Never // whether a client is a pod cannot be told, and most are
	}
	return f
}

// external is a frontend that is asked from anywhere. With policy Local what comes from outside stays on this node; what
// comes from the cluster goes where policy Cluster would have it go, as it would not pass a load balancer (kube-proxy's
// short circuit).
func (r *renderer) external(kind dataplane.Kind, ip netip.Addr, p port, b *backends) dataplane.Frontend {
	own := b.pool(func(s *localv1.EndpointScopes) bool { return s.GetExternal() })
	if !r.svc.GetExternalTrafficToLocal() {
		return r.frontend(kind, ip, p, own)
	}
	own.Empty = b.emptied(true)
	short := b.pool(func(s *localv1.EndpointScopes) bool {
		if r.svc.GetInternalTrafficToLocal() {
			return s.GetCluster()
		}
		return s.GetInternal()
	})
	if len(short.Targets) == 0 && len(own.Targets) != 0 {
		short = own // a server that does not tell of the others; those here are among them
	}
	f := r.frontend(kind, ip, p, short)
	f.Local = &own
	return f
}

func unspecified(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// adapt is a service on a node that has these addresses. A client on a node that has a load balancer's IP as its own, as
// some load balancers want it, asks with that very address as its source; where the node may ask, that is let through.
// The service itself is not changed.
func adapt(s *dataplane.Service, node map[netip.Addr]bool) *dataplane.Service {
	var out *dataplane.Service
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if len(f.Sources) == 0 || !admitsNode(f.Sources, node) {
			continue
		}
		if out == nil {
			out = &dataplane.Service{Name: s.Name, Created: s.Created, Frontends: append([]dataplane.Frontend(nil), s.Frontends...)}
		}
		own := netip.PrefixFrom(f.IP, f.IP.BitLen())
		out.Frontends[i].Sources = append(f.Sources[:len(f.Sources):len(f.Sources)], own)
	}
	if out == nil {
		return s
	}
	out.Normalize()
	return out
}

func admitsNode(sources []netip.Prefix, node map[netip.Addr]bool) bool {
	for ip := range node {
		for _, p := range sources {
			if p.Contains(ip) {
				return true
			}
		}
	}
	return false
}
