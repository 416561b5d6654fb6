// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	model "sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// ServiceEndpoints is a Kubernetes Service, as kpng tells of it, and those of its endpoints that this node may use. It is
// what a [Backend] is given; the same as client.ServiceEndpoints.
type ServiceEndpoints = fullstate.ServiceEndpoints

// The model.
type (
	// Service is all that the kernel does for one Service, in both families. It is the unit of change and of failure.
	// Validate reports every fault that it has; Normalize sorts it, so that [Equal] can compare.
	Service = model.Service
	// Frontend is an address that traffic is sent to: where packets go, and on what terms.
	Frontend = model.Frontend
	// Pool is where traffic goes: targets, of which each is as likely, or what happens without one.
	Pool = model.Pool
	// Target is an address, and a port or none, that traffic is sent to.
	Target = model.Target
	// Egress gives the connections that an address opens to the outside another source address.
	Egress = model.Egress
	// Key is what a frontend is looked up by: address, protocol, port. No two frontends on a node have the same.
	Key = model.Key
)

// Kind is what a frontend's address is to Kubernetes. External and load-balancer IPs are guarded by a [Backend].
type Kind = model.Kind

// The kinds of frontends.
const (
	ClusterIP      = model.ClusterIP
	ExternalIP     = model.ExternalIP
	LoadBalancerIP = model.LoadBalancerIP
	NodePort       = model.NodePort
)

// Protocol is an IP protocol, by its number.
type Protocol = model.Protocol

// The protocols of frontends. Any takes all of an address, whatever the protocol: also ping, GRE and fragments.
const (
	Any  = model.Any
	TCP  = model.TCP
	UDP  = model.UDP
	SCTP = model.SCTP
)

// Action is what happens to traffic that has nowhere to go.
type Action = model.Action

// The actions. Reject is the default: TCP gets a reset, the rest ICMP's port unreachable.
const (
	Reject = model.Reject
	Drop   = model.Drop
)

// Masquerade says whose address a target sees: the client's, or the node's.
type Masquerade = model.Masquerade

// The ways to masquerade. Never is the default; a pod that reaches itself is masqueraded all the same.
const (
	Never    = model.Never
	NonLocal = model.NonLocal
	Remote   = model.Remote
	Always   = model.Always
)

// MaxTargets is how many targets a pool may have.
const MaxTargets = model.MaxTargets

// Writer makes a kernel do what the model says. Its docstring is the contract: who calls, what an error means.
type Writer = model.Writer

// Change of one service. Old nil: it is new. New nil: it is gone.
type Change = model.Change

// Options are what a writer is to know besides services: whose it is, and which addresses are the cluster's.
type Options = model.Options

// The bits of the packet's and of the connection's mark that are used unless [Options] name others. kube-proxy's are
// 0x4000 and 0x8000.
const (
	DefaultMark       = model.DefaultMark
	DefaultMarkAlways = model.DefaultMarkAlways
	DefaultConnMark   = model.DefaultConnMark
)

// ErrUnsupported is in the errors about things that this kernel does not have. Trying again does not help.
var ErrUnsupported = model.ErrUnsupported

// Equal tells whether two services, both normalized, are the same by value. Nil equals nil only.
func Equal(a, b *Service) bool { return model.Equal(a, b) }
