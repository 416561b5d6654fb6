// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dataplane

import (
	"context"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/driver"
	"sigs.k8s.io/kpng/backends/internal/proxy"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink/changes"
)

// Backend is a command that programs the kernel: what its author brings. Name and Render are enough.
//
// Render and Finish must be pure: the same for the same arguments, which they neither change nor keep. One goroutine at a
// time calls them. What they return is given the service's name, sorted and validated; one that no kernel could take is
// logged, and not served.
type Backend struct {
	// Name is the command's, and the owner of all that it writes: 1 to 16 lower-case letters, digits and dashes.
	Name string
	// Short and Long are for --help: one line, and some.
	Short, Long string

	// Render is all that a service asks for; nil when that is nothing. A frontend for which there is no target is rendered
	// too, with an empty pool, so that the service keeps its claim to the address.
	Render func(*ServiceEndpoints) *Service
	// Finish, if not nil, returns what the kernel is to do for a service that was given the frontends in its argument: what
	// Render asked for, without those that are refused or another service's. Nil is nothing. Egress belongs here, or
	// connections could leave with an address that the service was not given.
	Finish func(*Service) *Service

	// Flags, if not nil, are the command's own, next to those that all have.
	Flags Flags
	// Options, if not nil, is asked when the flags are parsed; what is zero has a default, and Owner is always Name.
	Options func() Options
	// Preferred programs the kernel when --dataplane does not say: nftables, unless it is IPTables.
	Preferred Dataplane
	// AllEndpoints asks kpng also for endpoints that get no new traffic here (localv1.WatchReq.AllEndpoints). Render must
	// then look at the Scopes of each.
	AllEndpoints bool

	// Start, if not nil, is called once, before anything is written. ctx ends with the backend; an error ends it. Not
	// called with --dry-run and --cleanup.
	Start func(ctx context.Context) error
	// Observe, if not nil, is called with each change of services after it was handed on to be written.
	Observe func([]changes.Change)
}

// Flags are flags that can be wrong. Validate reports every fault at once.
type Flags = proxy.Flags

// Prefixes are the value of a flag that takes a list of CIDRs, as --cluster-cidrs. Bind it in Flags.BindFlags, Parse it
// in Flags.Validate.
type Prefixes = proxy.Prefixes

// Dataplane is a value of --dataplane.
type Dataplane = driver.Dataplane

// The dataplanes.
const (
	IPTables = driver.IPTables
	NFTables = driver.NFTables
)

// IsSpecial tells whether an address is loopback, link-local, multicast, broadcast or unspecified. No service or pod has
// one, but an Endpoints object written by hand can name one: a target like that would be this node itself.
func IsSpecial(ip netip.Addr) bool { return proxy.IsSpecial(ip) }

// Cmd is a backend's command inside another program: for backendcmd.Register, or for client.Runner's RunCmd.
type Cmd interface {
	backendcmd.Cmd
	backendcmd.Preparer
	backendcmd.Finisher
	// Validate reports every fault of the flags at once.
	Validate() error
	// Collectors are the metrics.
	Collectors() []prometheus.Collector
	// Ready tells why the kernel is not as it should be, or nil.
	Ready() error
}

// New returns the command with its defaults. Each runs once.
func (b Backend) New() Cmd {
	spec := proxy.Spec{
		Owner: b.Name, Flags: b.Flags, Preferred: b.Preferred, AllEndpoints: b.AllEndpoints,
		Dataplane: b.Options, Start: b.Start, Observe: b.Observe,
		Rules: b.rules,
	}
	if spec.Flags == nil {
		spec.Flags = noFlags{}
	}
	if spec.Preferred == "" {
		spec.Preferred = NFTables
	}
	if spec.Dataplane == nil {
		spec.Dataplane = func() Options { return Options{} }
	}
	return proxy.New(spec)
}

func (b Backend) rules() proxy.Rules {
	rules := proxy.Rules{Render: func(item *ServiceEndpoints) *Service {
		return checked(item.Service.NamespacedName(), b.Render(item))
	}}
	if b.Finish != nil {
		rules.Finish = func(s *Service) *Service { return checked(s.Name, b.Finish(s)) }
	}
	return rules
}

// checked is a service as writers want it, or nil.
func checked(name string, s *Service) *Service {
	if s == nil {
		return nil
	}
	if s.Name != name { // Finish may return its argument, which others read
		s.Name = name
	}
	if err := s.Validate(); err != nil {
		klog.ErrorS(err, "A service is not served: what the backend wants for it is faulty", "service", name)
		return nil
	}
	s.Normalize()
	return s
}
