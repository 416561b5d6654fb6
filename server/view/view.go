// SPDX-License-Identifier: Apache-2.0

// Package view says how a service looks from one node: which of its endpoints the node may use, and for what.
// Its functions are pure; their rules are those of kube-proxy, and are spelled out in the table of view_test.go.
package view

import (
	"slices"

	"sigs.k8s.io/kpng/server/store"
)

// Scope is a set of bits that tell what an endpoint is to a node.
type Scope uint8

const (
	// Local: the endpoint is on the node.
	Local Scope = 1 << iota
	// Internal: the node may send it traffic for cluster IPs.
	Internal
	// External: the node may send it traffic for node ports, external IPs and load-balancer IPs.
	External

	scopes = 1 << iota // how many values a Scope has
)

// Endpoint is an endpoint as a node sees it.
type Endpoint struct {
	*store.Endpoint
	Scope Scope
}

// Node is the place from which a service is seen.
type Node struct {
	Name string
	Zone string // topology.kubernetes.io/zone; empty when it is not known
}

// At returns the place of the node of that name.
func At(snapshot *store.Snapshot, name string) Node {
	if node := snapshot.Node(name); node != nil {
		return Node{Name: name, Zone: node.Zone()}
	}
	return Node{Name: name}
}

// Endpoints appends to buf the endpoints of a service that a node may use, in the order of their keys.
//
// Traffic policy Cluster may use every ready endpoint, or, if hints apply (see [hintsFor]), those hinted; traffic
// policy Local may use the ready ones on the node, whatever is hinted. Each of the two that has no ready endpoint
// uses those that still serve while they terminate (KEP-1669). Internal and external traffic each have a policy
// of their own (KEP-2086). A service that publishes not-ready addresses has only ready endpoints.
//
// Each IP family is looked at by itself, as kube-proxy does: what is left, and what is hinted, of one says nothing
// about the other.
func Endpoints(buf []Endpoint, svc *store.Service, node Node) []Endpoint {
	if !svc.Exists() {
		return buf
	}
	var ipv4, ipv6 rules
	for _, ep := range svc.Endpoints() {
		rules := &ipv4
		if ep.IPv6() {
			rules = &ipv6
		}
		if rules.svc == nil { // the first of its family
			*rules = rulesFor(svc, node, ep.IPv6())
		}
		if scope := rules.scope(ep); scope != 0 {
			if rules.local(ep) {
				scope |= Local
			}
			buf = append(buf, Endpoint{Endpoint: ep, Scope: scope})
		}
	}
	return buf
}

// rules decide about the endpoints of one service and one IP family, seen from one node.
type rules struct {
	svc  *store.Service
	node Node
	ipv6 bool
	hint hint

	// What is left to use, for each policy: ready endpoints, else terminating ones. The second is not looked for
	// when no policy is Local.
	clusterReady, localReady bool
}

func rulesFor(svc *store.Service, node Node, ipv6 bool) rules {
	r := rules{svc: svc, node: node, ipv6: ipv6}
	localMatters := svc.InternalTrafficToLocal() || svc.ExternalTrafficToLocal()
	for _, ep := range svc.Endpoints() {
		if r.ready(ep) {
			r.clusterReady = true
			if !localMatters {
				break
			}
			if r.local(ep) {
				r.localReady = true
			}
		}
	}
	if r.clusterReady && !(svc.InternalTrafficToLocal() && svc.ExternalTrafficToLocal()) {
		r.hint = r.hintsFor()
	}
	return r
}

func (r *rules) scope(ep *store.Endpoint) (scope Scope) {
	cluster, local := r.cluster(ep), r.local(ep) && r.usable(ep, r.localReady)
	if r.svc.InternalTrafficToLocal() && local || !r.svc.InternalTrafficToLocal() && cluster {
		scope |= Internal
	}
	if r.svc.ExternalTrafficToLocal() && local || !r.svc.ExternalTrafficToLocal() && cluster {
		scope |= External
	}
	return scope
}

// ready: and of the family.
func (r *rules) ready(ep *store.Endpoint) bool {
	return ep.IPv6() == r.ipv6 && (ep.Ready() || r.svc.PublishNotReady())
}

func (r *rules) local(ep *store.Endpoint) bool { return ep.Node() == r.node.Name && r.node.Name != "" }

// usable: ready, or, where no ready endpoint is left, terminating but still serving.
func (r *rules) usable(ep *store.Endpoint, anyReady bool) bool {
	if anyReady {
		return r.ready(ep)
	}
	return ep.Serving() && ep.Terminating()
}

// cluster says whether traffic policy Cluster may use the endpoint.
func (r *rules) cluster(ep *store.Endpoint) bool {
	return r.usable(ep, r.clusterReady) && r.hint.allows(ep, r.node)
}

// hint is which of an endpoint's topology hints decide.
type hint int

const (
	noHints hint = iota
	nodeHints
	zoneHints
)

// hintsFor says which hints apply: node hints (KEP-3015) if every ready endpoint has some and at least one endpoint
// is hinted for the node; otherwise zone hints (KEP-2433) by the same rule for the node's zone; otherwise none.
func (r *rules) hintsFor() hint {
	allNode, allZone, forNode, forZone := true, true, false, false
	for _, ep := range r.svc.Endpoints() {
		if !r.ready(ep) {
			continue
		}
		allNode = allNode && len(ep.NodeHints()) != 0
		allZone = allZone && len(ep.ZoneHints()) != 0
		forNode = forNode || nodeHints.names(ep, r.node)
		forZone = forZone || zoneHints.names(ep, r.node)
	}
	switch {
	case allNode && forNode:
		return nodeHints
	case allZone && forZone:
		return zoneHints
	default:
		return noHints
	}
}

// names says that the endpoint has a hint for the node or its zone.
func (h hint) names(ep *store.Endpoint, node Node) bool {
	if h == nodeHints {
		return contains(ep.NodeHints(), node.Name)
	}
	return node.Zone != "" && contains(ep.ZoneHints(), node.Zone)
}

func (h hint) allows(ep *store.Endpoint, node Node) bool {
	return h == noHints || h.names(ep, node)
}

func contains(sorted []string, s string) bool {
	_, found := slices.BinarySearch(sorted, s)
	return found
}
