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

// newEndpoints encodes the endpoints of a slice, by key and without duplicates, taking over the objects that are
// equal among the old ones (also by key).
func newEndpoints(infos []*globalv1.EndpointInfo, old []*Endpoint) []*Endpoint {
	var enc endpointEncoder
	eps := make([]*Endpoint, 0, len(infos))
	for _, info := range infos {
		if ep := enc.encode(info, old); ep != nil {
			eps = append(eps, ep)
		}
	}
	return sortAndMerge(eps)
}

// endpointEncoder encodes the endpoints of one slice. When a slice changes, most of its endpoints are what they were,
// so it compares before it makes anything that stays; its buffers are for that.
type endpointEncoder struct {
	message   localv1.Endpoint
	key, wire []byte
	addresses []byte
}

// encode returns what a source says of an endpoint: the old one when it is the same, or nil when it has no address.
func (e *endpointEncoder) encode(info *globalv1.EndpointInfo, old []*Endpoint) *Endpoint {
	ep := info.GetEndpoint()
	e.message.Hostname, e.message.IPs, e.message.PortOverrides = ep.GetHostname(), ep.GetIPs(), ep.GetPortOverrides()
	if e.wire = appendMarshalled(e.wire[:0], &e.message); len(e.wire) == 0 {
		return nil
	}
	e.appendKey(ep)
	at, found := slices.BinarySearchFunc(old, e.key, func(o *Endpoint, key []byte) int { return cmp.Compare(o.key, string(key)) })
	if found && old[at].wire == string(e.wire) && old[at].says(info) {
		return old[at]
	}
	return &Endpoint{
		key:        string(e.key),
		wire:       string(e.wire),
		node:       shared(info.GetTopology().GetNode()),
		zone:       shared(info.GetTopology().GetZone()),
		source:     shared(info.GetSourceName()),
		podName:    info.GetPodName(),
		conditions: conditionsOf(info),
		hints:      hintsOf(info),
		ipv6:       len(ep.GetIPs().GetV4()) == 0,
	}
}

// says compares all that is not in the wire form.
func (e *Endpoint) says(info *globalv1.EndpointInfo) bool {
	return e.node == info.GetTopology().GetNode() && e.zone == info.GetTopology().GetZone() &&
		e.source == info.GetSourceName() && e.podName == info.GetPodName() && e.conditions == conditionsOf(info) &&
		equalSet(e.ZoneHints(), info.GetHints().GetZones()) && equalSet(e.NodeHints(), info.GetHints().GetNodes())
}

// equalSet compares a sorted list with one in any order.
func equalSet(sorted, list []string) bool {
	return len(sorted) == len(list) && (len(list) == 0 || slices.Equal(sorted, slices.Sorted(slices.Values(list))))
}

func conditionsOf(info *globalv1.EndpointInfo) conditions {
	c := info.GetConditions()
	return conditions{ready: c.GetReady(), serving: c.GetServing(), terminating: c.GetTerminating()}
}

func hintsOf(info *globalv1.EndpointInfo) *hints {
	zones, nodes := info.GetHints().GetZones(), info.GetHints().GetNodes()
	if len(zones) == 0 && len(nodes) == 0 {
		return nil
	}
	return &hints{zones: sharedAll(zones), nodes: sharedAll(nodes)}
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

// appendKey names an endpoint within its service: its first address, for people to read, and a hash over all
// addresses and ports. So an endpoint keeps its key when its conditions change or when it moves to another slice,
// and the same endpoint in two slices has one key.
func (e *endpointEncoder) appendKey(ep *localv1.Endpoint) {
	e.key, e.addresses = e.key[:0], e.addresses[:0]
	for _, ips := range [][]string{ep.GetIPs().GetV4(), ep.GetIPs().GetV6()} {
		for _, ip := range ips {
			if len(e.key) == 0 {
				e.key = append(e.key, ip...)
			}
			e.text(ip)
		}
	}
	for _, port := range ep.GetPortOverrides() {
		e.text(port.GetName())
		e.addresses = binary.BigEndian.AppendUint32(e.addresses, uint32(port.GetPort()))
	}
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], xxhash.Sum64(e.addresses))
	e.key = hex.AppendEncode(append(e.key, '-'), sum[:4])
}

func (e *endpointEncoder) text(s string) {
	e.addresses = binary.BigEndian.AppendUint32(e.addresses, uint32(len(s)))
	e.addresses = append(e.addresses, s...)
}
