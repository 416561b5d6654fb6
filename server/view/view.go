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
	// Cluster: the node may send it what comes from the node itself or its pods to an external address of a service
	// whose policies are both Local. Said only when asked for all endpoints.
	Cluster
	// Terminating: the endpoint's pod is being deleted. Said only when asked for all endpoints.
	Terminating

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

// Query is how services are looked at: from where, and for what.
type Query struct {
	Node
	// AllEndpoints asks for Cluster, for Terminating, and also for the endpoints that get no new traffic but still serve
	// while they terminate: a node keeps the connections to them.
	AllEndpoints bool
}

// At returns the place of the node of that name.
func At(snapshot *store.Snapshot, name string) Node {
	if node := snapshot.Node(name); node != nil {
		return Node{Name: name, Zone: node.Zone()}
	}
	return Node{Name: name}
}

// Endpoints appends to buf the endpoints of a service that a query is about, in the order of their keys: those that the
// node may use, and with AllEndpoints some more.
//
// Traffic policy Cluster may use every ready endpoint, or, if hints apply (see [hintsFor]), those hinted; traffic
// policy Local may use the ready ones on the node, whatever is hinted. Each of the two that has no ready endpoint
// uses those that still serve while they terminate (KEP-1669). Internal and external traffic each have a policy
// of their own (KEP-2086). A service that publishes not-ready addresses has only ready endpoints.
//
// Where both policies are Local, traffic from the node itself or its pods to external addresses uses what policy Cluster
// would, so that the way of such traffic does not depend on where an endpoint runs: scope Cluster.
//
// Each IP family is looked at by itself, as kube-proxy does: what is left, and what is hinted, of one says nothing
// about the other.
func Endpoints(buf []Endpoint, svc *store.Service, query Query) []Endpoint {
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
			*rules = rulesFor(svc, query, ep.IPv6())
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
	Query
	svc  *store.Service
	ipv6 bool
	hint hint

	// What is left to use, for each policy: ready endpoints, else terminating ones. The second is not looked for
	// when no policy is Local.
	clusterReady, localReady bool
}

func rulesFor(svc *store.Service, query Query, ipv6 bool) rules {
	r := rules{Query: query, svc: svc, ipv6: ipv6}
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
	if r.clusterReady && (!r.bothLocal() || r.AllEndpoints) {
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
	if r.AllEndpoints {
		if r.bothLocal() && cluster {
			scope |= Cluster
		}
		if ep.Terminating() && (scope != 0 || ep.Serving()) {
			scope |= Terminating
		}
	}
	return scope
}

func (r *rules) bothLocal() bool {
	return r.svc.InternalTrafficToLocal() && r.svc.ExternalTrafficToLocal()
}

// ready: and of the family.
func (r *rules) ready(ep *store.Endpoint) bool {
	return ep.IPv6() == r.ipv6 && (ep.Ready() || r.svc.PublishNotReady())
}

func (r *rules) local(ep *store.Endpoint) bool { return ep.Node() == r.Name && r.Name != "" }

// usable: ready, or, where no ready endpoint is left, terminating but still serving.
func (r *rules) usable(ep *store.Endpoint, anyReady bool) bool {
	if anyReady {
		return r.ready(ep)
	}
	return ep.Serving() && ep.Terminating()
}

// cluster says whether traffic policy Cluster may use the endpoint.
func (r *rules) cluster(ep *store.Endpoint) bool {
	return r.usable(ep, r.clusterReady) && r.hint.allows(ep, r.Node)
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
		forNode = forNode || nodeHints.names(ep, r.Node)
		forZone = forZone || zoneHints.names(ep, r.Node)
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
