// SPDX-License-Identifier: Apache-2.0

package serviceevents

import (
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
)

// portsDiff is the difference of two lists of ports, each in the order of its list. A port that changed is gone as it
// was, and came as it is.
type portsDiff struct {
	prev, curr []*localv1.PortMapping // without nils and duplicates
	gone, came []*localv1.PortMapping
}

// portKey is what makes a port the same port.
type portKey struct {
	protocol localv1.Protocol
	port     int32
}

func diffPorts(prev, curr []*localv1.PortMapping) (d portsDiff) {
	var was, is map[portKey]*localv1.PortMapping
	d.prev, was = distinct(prev)
	d.curr, is = distinct(curr)
	for _, p := range d.prev {
		if after := is[keyOf(p)]; after == nil || !proto.Equal(p, after) {
			d.gone = append(d.gone, p)
		}
	}
	for _, p := range d.curr {
		if before := was[keyOf(p)]; before == nil || !proto.Equal(before, p) {
			d.came = append(d.came, p)
		}
	}
	return d
}

// distinct leaves out what Kubernetes does not let a service have: a port without a value, and one given twice.
func distinct(ports []*localv1.PortMapping) ([]*localv1.PortMapping, map[portKey]*localv1.PortMapping) {
	byKey := make(map[portKey]*localv1.PortMapping, len(ports))
	list := make([]*localv1.PortMapping, 0, len(ports))
	for _, p := range ports {
		if p == nil || byKey[keyOf(p)] != nil {
			continue
		}
		byKey[keyOf(p)] = p
		list = append(list, p)
	}
	return list, byKey
}

func keyOf(p *localv1.PortMapping) portKey { return portKey{p.GetProtocol(), p.GetPort()} }

// ipsDiff is the difference of two sets of addresses of one kind: IPv4 first, sorted.
type ipsDiff struct {
	kind                 IPKind
	kept, added, removed []string
}

func (u *update) diffIPs() {
	for kind, get := range [...]func(*localv1.ServiceIPs) *localv1.IPSet{
		ClusterIP:      (*localv1.ServiceIPs).GetClusterIPs,
		ExternalIP:     (*localv1.ServiceIPs).GetExternalIPs,
		LoadBalancerIP: (*localv1.ServiceIPs).GetLoadBalancerIPs,
	} {
		prev, curr := get(u.prev.GetIPs()), get(u.curr.GetIPs())
		added, removed := prev.Diff(curr)
		kept, _ := removed.Diff(prev)
		u.ips[kind] = ipsDiff{kind: IPKind(kind), kept: kept.All(), added: added.All(), removed: removed.All()}
	}
}
