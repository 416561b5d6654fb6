// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// Slice translates an EndpointSlice. It returns nil for one that belongs to no service, or whose addresses are not IP
// addresses.
//
// One endpoint of the slice becomes one EndpointInfo. All its addresses are carried: the API says that they are
// fungible, and leaves it to the consumer to use the first or any of them.
func Slice(es *discoveryv1.EndpointSlice) (*store.Slice, Problems) {
	var problems Problems
	service := es.Labels[discoveryv1.LabelServiceName]
	if service == "" || !named(es.Namespace, es.Name, &problems) {
		return nil, problems
	}
	if strings.Contains(service, "/") {
		problems.addf("label %s %q is not the name of a service: the slice is left out", discoveryv1.LabelServiceName, service)
		return nil, problems
	}
	if es.AddressType != discoveryv1.AddressTypeIPv4 && es.AddressType != discoveryv1.AddressTypeIPv6 {
		problems.addf("addressType %q is not carried (IPv4 and IPv6 are): the slice is left out", es.AddressType)
		return nil, problems
	}
	out := &store.Slice{Namespace: es.Namespace, Name: es.Name, Service: service}
	_, out.Headless = es.Labels[corev1.IsHeadlessService]
	ports := slicePorts(es.Ports, &problems) // shared by all endpoints: nobody changes a message once it is made
	for i := range es.Endpoints {
		ips := endpointIPs(es, i, &problems)
		if len(ips.V4)+len(ips.V6) == 0 {
			continue
		}
		info := endpoint(&es.Endpoints[i])
		info.Namespace, info.SourceName, info.ServiceName = es.Namespace, es.Name, service
		info.Endpoint.IPs, info.Endpoint.PortOverrides = ips, ports
		out.Endpoints = append(out.Endpoints, info)
	}
	return out, problems
}

// endpointIPs returns the addresses of the slice's own family.
func endpointIPs(es *discoveryv1.EndpointSlice, i int, problems *Problems) *localv1.IPSet {
	set := &localv1.IPSet{}
	for j, text := range es.Endpoints[i].Addresses {
		addr, ok := parseAddress(text)
		if !ok {
			problems.addf("endpoints[%d].addresses[%d] %q is not an IP address: left out", i, j, text)
			continue
		}
		if addr.Is4() != (es.AddressType == discoveryv1.AddressTypeIPv4) {
			problems.addf("endpoints[%d].addresses[%d] %q is not of addressType %s: left out", i, j, text, es.AddressType)
			continue
		}
		addTo(set, addr)
	}
	return sortSet(set)
}

func endpoint(ep *discoveryv1.Endpoint) *globalv1.EndpointInfo {
	info := &globalv1.EndpointInfo{
		Endpoint:   &localv1.Endpoint{Hostname: orZero(ep.Hostname)},
		Conditions: conditions(&ep.Conditions),
		Hints:      hints(ep.Hints),
	}
	if ep.TargetRef != nil && ep.TargetRef.Kind == "Pod" {
		info.PodName = ep.TargetRef.Name
	}
	if node, zone := orZero(ep.NodeName), orZero(ep.Zone); node != "" || zone != "" {
		info.Topology = &globalv1.TopologyInfo{Node: node, Zone: zone}
	}
	return info
}

// conditions resolves what is not said, by the documentation of discovery.k8s.io/v1 EndpointConditions: not knowing
// whether an endpoint is ready means that it is, serving defaults to ready, and terminating to false.
func conditions(c *discoveryv1.EndpointConditions) *globalv1.EndpointConditions {
	ready := c.Ready == nil || *c.Ready
	out := &globalv1.EndpointConditions{Ready: ready, Serving: ready, Terminating: orZero(c.Terminating)}
	if c.Serving != nil {
		out.Serving = *c.Serving
	}
	return out
}

// hints returns nil when none are given: an empty hint and no hint are the same.
func hints(h *discoveryv1.EndpointHints) *globalv1.TopologyHints {
	if h == nil {
		return nil
	}
	out := &globalv1.TopologyHints{}
	for _, zone := range h.ForZones {
		if zone.Name != "" {
			out.Zones = append(out.Zones, zone.Name)
		}
	}
	for _, node := range h.ForNodes {
		if node.Name != "" {
			out.Nodes = append(out.Nodes, node.Name)
		}
	}
	if len(out.Zones)+len(out.Nodes) == 0 {
		return nil
	}
	out.Zones, out.Nodes = sortedUnique(out.Zones), sortedUnique(out.Nodes)
	return out
}

func orZero[T any](p *T) (zero T) {
	if p == nil {
		return zero
	}
	return *p
}
