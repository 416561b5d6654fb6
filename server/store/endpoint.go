// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
)

// Endpoint is one endpoint of a service, decoded as far as choosing between endpoints needs, and encoded once for
// the wire. It never changes, and stays the same object as long as the source says the same of it.
//
// It costs about 150 bytes, plus its key, its wire form (30 to 60 bytes) and its pod's name; names of nodes, zones
// and slices are shared.
type Endpoint struct {
	key     string
	wire    string // the marshalled localv1.Endpoint without what depends on who looks
	node    string
	zone    string
	source  string // the name of the slice
	podName string
	hints   *hints // nil when there are none
	conditions
	ipv6 bool
}

// conditions of an endpoint, as in discovery.k8s.io/v1 EndpointConditions.
type conditions struct {
	ready, serving, terminating bool
}

// hints are topology hints, each list sorted.
type hints struct {
	zones []string // hints.forZones (KEP-2433)
	nodes []string // hints.forNodes (KEP-3015)
}

// Key names the endpoint within its service.
func (e *Endpoint) Key() string { return e.key }

// Wire is the marshalled localv1.Endpoint without Local, Scopes and Terminating, which depend on who looks. Bytes of
// these fields may be appended to it.
func (e *Endpoint) Wire() string { return e.wire }

// IPv6 says that the endpoint is one of IPv6. One with addresses of both families, which no EndpointSlice has, is one
// of IPv4.
func (e *Endpoint) IPv6() bool { return e.ipv6 }

// Source is the name of the EndpointSlice.
func (e *Endpoint) Source() string { return e.source }

// Node is the name of the endpoint's node, empty when it is not known.
func (e *Endpoint) Node() string { return e.node }

// Ready, Serving and Terminating are the endpoint's conditions (KEP-1672).
func (e *Endpoint) Ready() bool { return e.ready }

// Serving says that the endpoint passes its readiness checks, also while it terminates.
func (e *Endpoint) Serving() bool { return e.serving }

// Terminating says that the endpoint's pod is being deleted.
func (e *Endpoint) Terminating() bool { return e.terminating }

// ZoneHints are the zones whose nodes should use the endpoint, sorted; none when there is no such hint.
func (e *Endpoint) ZoneHints() []string {
	if e.hints == nil {
		return nil
	}
	return e.hints.zones
}

// NodeHints are the nodes that should use the endpoint, sorted; none when there is no such hint.
func (e *Endpoint) NodeHints() []string {
	if e.hints == nil {
		return nil
	}
	return e.hints.nodes
}

// info decodes the endpoint.
func (e *Endpoint) info(namespace, service string) *globalv1.EndpointInfo {
	info := &globalv1.EndpointInfo{
		Namespace:   namespace,
		SourceName:  e.source,
		ServiceName: service,
		Endpoint:    &localv1.Endpoint{},
		Conditions: &globalv1.EndpointConditions{
			Ready: e.ready, Serving: e.serving, Terminating: e.terminating,
		},
		PodName: e.podName,
	}
	mustUnmarshal(e.wire, info.Endpoint)
	if e.node != "" || e.zone != "" {
		info.Topology = &globalv1.TopologyInfo{Node: e.node, Zone: e.zone}
	}
	if e.hints != nil {
		info.Hints = &globalv1.TopologyHints{Zones: e.hints.zones, Nodes: e.hints.nodes}
	}
	return info
}

// sortAndMerge sorts by key and keeps one endpoint of each key: a ready one if there is any, else a serving one,
// then the one that came first. EndpointSlices may name an endpoint twice while it moves from slice to slice.
func sortAndMerge(eps []*Endpoint) []*Endpoint {
	slices.SortStableFunc(eps, func(a, b *Endpoint) int {
		return cmp.Or(cmp.Compare(a.key, b.key), b.rank()-a.rank())
	})
	return slices.CompactFunc(eps, func(a, b *Endpoint) bool { return a.key == b.key })
}

func (c conditions) rank() int {
	switch {
	case c.ready:
		return 2
	case c.serving:
		return 1
	default:
		return 0
	}
}

// mergeSlices returns all endpoints of some slices.
func mergeSlices(sls []slice) []*Endpoint {
	switch len(sls) {
	case 0:
		return nil
	case 1:
		return sls[0].endpoints
	}
	total := 0
	for _, sl := range sls {
		total += len(sl.endpoints)
	}
	all := make([]*Endpoint, 0, total)
	for _, sl := range sls {
		all = append(all, sl.endpoints...)
	}
	return sortAndMerge(all)
}
