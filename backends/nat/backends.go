// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"math"
	"net/netip"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/proxy"
)

// port is a service's port. The zero value is all that is sent to an address, with MapIP.
type port struct {
	mapping  *localv1.PortMapping
	protocol dataplane.Protocol
	number   uint16
	nodePort uint16
}

var protocols = map[localv1.Protocol]dataplane.Protocol{
	localv1.Protocol_TCP: dataplane.TCP, localv1.Protocol_UDP: dataplane.UDP, localv1.Protocol_SCTP: dataplane.SCTP,
}

// portOf reads a port; false for one that no packet can be for.
func portOf(mapping *localv1.PortMapping) (port, bool) {
	protocol, ok := protocols[mapping.GetProtocol()]
	number := portNumber(mapping.GetPort())
	return port{mapping, protocol, number, portNumber(mapping.GetNodePort())}, ok && number != 0
}

// portNumber is 0 for what is none.
func portNumber(n int32) uint16 {
	if n < 1 || n > math.MaxUint16 {
		return 0
	}
	return uint16(n)
}

// endpoint is an endpoint with its address in one family.
type endpoint struct {
	*localv1.Endpoint
	ip netip.Addr
}

// inFamily are the endpoints that have an address of the family.
func inFamily(endpoints []*localv1.Endpoint, v6 bool) []endpoint {
	list := make([]endpoint, 0, len(endpoints))
	for _, ep := range endpoints {
		if ip, ok := proxy.EndpointIP(ep, v6); ok {
			list = append(list, endpoint{ep, ip})
		}
	}
	return list
}

// backends are the endpoints that serve a port, with the target that each is.
type backends struct {
	endpoints []endpoint
	targets   []dataplane.Target
	// any: there is one somewhere that new traffic could go to, whatever the policies say.
	any bool
}

func backendsOf(p port, endpoints []endpoint) *backends {
	b := &backends{endpoints: make([]endpoint, 0, len(endpoints)), targets: make([]dataplane.Target, 0, len(endpoints))}
	index := make(map[dataplane.Target]bool, len(endpoints))
	for _, ep := range endpoints {
		t := dataplane.Target{IP: ep.ip}
		if p.mapping != nil {
			n, err := ep.PortMapping(p.mapping)
			t.Port = portNumber(n)
			if err != nil || t.Port == 0 {
				continue // this pod does not serve the port
			}
		}
		if index[t] {
			continue // two slices name it
		}
		index[t] = true
		t.Local, t.Terminating = ep.GetLocal(), ep.GetTerminating()
		b.endpoints, b.targets = append(b.endpoints, ep), append(b.targets, t)
		b.any = b.any || ep.GetScopes().Any() || ep.GetScopes().GetCluster()
	}
	return b
}

// pool is made of the endpoints whose scopes are wanted. Those that still serve while they terminate, and get nothing new
// because there are better ones, keep their flows.
func (b *backends) pool(wanted func(*localv1.EndpointScopes) bool) dataplane.Pool {
	var p dataplane.Pool
	for i, ep := range b.endpoints {
		switch {
		case wanted(ep.GetScopes()) && len(p.Targets) < dataplane.MaxTargets:
			p.Targets = append(p.Targets, b.targets[i])
		case ep.GetTerminating():
			p.Draining = append(p.Draining, b.targets[i])
		}
	}
	return p
}

// emptied is what happens to traffic that has nowhere to go: it is refused where no endpoint is left at all, and dropped
// where only this node has none, as the client may then have more luck with another node.
func (b *backends) emptied(toLocal bool) dataplane.Action {
	if toLocal && b.any {
		return dataplane.Drop
	}
	return dataplane.Reject
}
