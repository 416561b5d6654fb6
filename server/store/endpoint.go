// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"unique"

	"github.com/cespare/xxhash/v2"

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
	wire    string // the marshalled localv1.Endpoint without Local and Scopes, which depend on who looks
	node    string
	zone    string
	source  string // the name of the slice
	podName string
	hints   *hints // nil when there are none
	conditions
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

// newEndpoint encodes what a source says of an endpoint.
func newEndpoint(info *globalv1.EndpointInfo) *Endpoint {
	ep := &Endpoint{
		key: endpointKey(info.GetEndpoint()),
		wire: marshal(&localv1.Endpoint{
			Hostname:      info.GetEndpoint().GetHostname(),
			IPs:           info.GetEndpoint().GetIPs(),
			PortOverrides: info.GetEndpoint().GetPortOverrides(),
		}),
		node:    shared(info.GetTopology().GetNode()),
		zone:    shared(info.GetTopology().GetZone()),
		source:  shared(info.GetSourceName()),
		podName: info.GetPodName(),
		conditions: conditions{
			ready:       info.GetConditions().GetReady(),
			serving:     info.GetConditions().GetServing(),
			terminating: info.GetConditions().GetTerminating(),
		},
	}
	zones, nodes := info.GetHints().GetZones(), info.GetHints().GetNodes()
	if len(zones) != 0 || len(nodes) != 0 {
		ep.hints = &hints{zones: sharedAll(zones), nodes: sharedAll(nodes)}
	}
	return ep
}

// shared returns the one copy that all equal strings share: many endpoints name the same node.
func shared(s string) string { return unique.Make(s).Value() }

func sharedAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = shared(s)
	}
	slices.Sort(out)
	return out
}

// endpointKey names an endpoint within its service: its first address, for people to read, and a hash over all
// addresses and ports. So an endpoint keeps its key when its conditions change or when it moves to another slice,
// and the same endpoint in two slices has one key.
func endpointKey(ep *localv1.Endpoint) string {
	digest := xxhash.New()
	var size [4]byte
	write := func(s string) {
		binary.BigEndian.PutUint32(size[:], uint32(len(s)))
		digest.Write(size[:])
		digest.WriteString(s)
	}
	first := ""
	for _, ips := range [][]string{ep.GetIPs().GetV4(), ep.GetIPs().GetV6()} {
		for _, ip := range ips {
			if first == "" {
				first = ip
			}
			write(ip)
		}
	}
	for _, port := range ep.GetPortOverrides() {
		write(port.GetName())
		binary.BigEndian.PutUint32(size[:], uint32(port.GetPort()))
		digest.Write(size[:])
	}
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], digest.Sum64())
	return first + "-" + hex.EncodeToString(sum[:4])
}

// Key names the endpoint within its service.
func (e *Endpoint) Key() string { return e.key }

// Wire is the marshalled localv1.Endpoint without Local and Scopes. Bytes of these two fields may be appended to it.
func (e *Endpoint) Wire() string { return e.wire }

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

// equal says that two endpoints do not differ in anything.
func (e *Endpoint) equal(o *Endpoint) bool {
	return e.key == o.key && e.wire == o.wire && e.node == o.node && e.zone == o.zone && e.source == o.source &&
		e.podName == o.podName && e.conditions == o.conditions &&
		slices.Equal(e.ZoneHints(), o.ZoneHints()) && slices.Equal(e.NodeHints(), o.NodeHints())
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

// newEndpoints encodes the endpoints of a slice, by key and without duplicates, taking over the objects that are
// equal among the old ones (also by key).
func newEndpoints(infos []*globalv1.EndpointInfo, old []*Endpoint) []*Endpoint {
	eps := make([]*Endpoint, 0, len(infos))
	for _, info := range infos {
		if ep := newEndpoint(info); ep.wire != "" { // else it has no address
			eps = append(eps, ep)
		}
	}
	eps = sortAndMerge(eps)
	for i, ep := range eps {
		at, found := slices.BinarySearchFunc(old, ep.key, func(o *Endpoint, key string) int {
			return cmp.Compare(o.key, key)
		})
		if found && old[at].equal(ep) {
			eps[i] = old[at]
		}
	}
	return eps
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
