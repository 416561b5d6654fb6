// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"
	"time"
)

// Service is all the kernel does for one Service, in both families. It is the unit of change and of failure.
type Service struct {
	// Name is namespace/name. It is shown in comments and logs, and tells services apart.
	Name string
	// Created is when the Service was made; zero when that is not known. It is nothing to the kernel, but of Services that
	// come at once and want the same, the oldest has it: see package claims.
	Created   time.Time
	Frontends []Frontend
	Egress    []Egress
}

// Frontend is an address that traffic is sent to.
type Frontend struct {
	Kind Kind
	// IP is where packets are sent to. A NodePort has the unspecified address of its family.
	IP netip.Addr
	// Protocol Any takes everything sent to IP that no frontend with a port takes.
	Protocol Protocol
	// Port is 0 if and only if the protocol is Any.
	Port uint16

	// Pool serves the traffic. With Local it serves only what comes from this node and from the cluster.
	Pool Pool
	// Local, if not nil, serves what comes from outside the cluster (external traffic policy Local).
	Local *Pool

	// Affinity, if not zero, is how long a client is sent to the same target after its last connection.
	// Whole seconds.
	Affinity time.Duration
	// Sources may use the frontend: nil is everybody, empty but not nil is nobody.
	Sources []netip.Prefix
	// Masquerade says when clients' addresses are hidden. It does not concern Local, whose targets see the client.
	Masquerade Masquerade
}

// Pool is where traffic goes.
type Pool struct {
	// Targets are equally likely. Order has no meaning.
	Targets []Target
	// Draining get nothing new, and keep the flows they have: targets that are about to go and have successors.
	Draining []Target
	// Empty is what happens when there are no targets.
	Empty Action
}

// Target is a place that traffic is sent to.
type Target struct {
	IP netip.Addr
	// Port 0 keeps the port (or whatever the protocol has instead).
	Port uint16
	// Local: on this node.
	Local bool
	// Terminating: it is about to go. It gets traffic like any other (a backend names it only when there is
	// no better one), but flows to it are not cut: see package conntrack.
	Terminating bool
}

// Egress gives connections from Source the address IP. Both are of one family.
type Egress struct {
	Source netip.Addr
	IP     netip.Addr
}

// Kind is what a frontend's address is to Kubernetes.
type Kind uint8

// The kinds of frontends.
const (
	ClusterIP Kind = iota + 1
	ExternalIP
	LoadBalancerIP
	NodePort
)

func (k Kind) String() string { return text(k, "Kind", kindNames) }

var kindNames = map[Kind]string{ClusterIP: "cluster IP", ExternalIP: "external IP", LoadBalancerIP: "load balancer IP", NodePort: "node port"}

// Protocol is an IP protocol, by its number.
type Protocol uint8

// The protocols of frontends.
const (
	Any  Protocol = 0
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func (p Protocol) String() string { return text(p, "Protocol", protocolNames) }

var protocolNames = map[Protocol]string{Any: "any", TCP: "tcp", UDP: "udp", SCTP: "sctp"}

// Action is what happens to traffic that has nowhere to go.
type Action uint8

// The actions.
const (
	// Reject answers TCP with a reset, everything else with ICMP's port unreachable.
	Reject Action = iota
	// Drop is silent.
	Drop
)

func (a Action) String() string { return text(a, "Action", actionNames) }

var actionNames = map[Action]string{Reject: "reject", Drop: "drop"}

// Masquerade says whose address a target sees. A hairpin is masqueraded in any case.
type Masquerade uint8

// The ways to masquerade.
const (
	// Never: always the client's.
	Never Masquerade = iota
	// NonLocal: the node's, if the client is not in [Options.ClusterCIDRs] and the target is not on this node.
	NonLocal
	// Remote: the node's, if the target is not on this node, whoever the client is. Node ports want it: a pod of another
	// node that asks this node would otherwise be answered past it.
	Remote
	// Always: the node's, whoever the client is.
	Always
)

func (m Masquerade) String() string { return text(m, "Masquerade", masqueradeNames) }

var masqueradeNames = map[Masquerade]string{Never: "never", NonLocal: "non-local", Remote: "remote", Always: "always"}

func text[T interface {
	comparable
	~uint8
}](v T, kind string, names map[T]string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(v))
}

// Key is what a frontend is looked up by. No two frontends on a node have the same.
type Key struct {
	IP       netip.Addr
	Protocol Protocol
	Port     uint16
}

// Key of the frontend.
func (f *Frontend) Key() Key { return Key{f.IP, f.Protocol, f.Port} }

// Is6 tells the family of the frontend.
func (f *Frontend) Is6() bool { return f.IP.Is6() }

func (k Key) String() string {
	switch {
	case k.Protocol == Any:
		return k.IP.String()
	case k.IP.IsUnspecified():
		return fmt.Sprintf("node port %d/%s (%s)", k.Port, k.Protocol, family(k.IP.Is6()))
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.IP, k.Port), k.Protocol)
}

func family(v6 bool) string {
	if v6 {
		return "IPv6"
	}
	return "IPv4"
}
