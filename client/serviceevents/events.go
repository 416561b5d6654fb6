// SPDX-License-Identifier: Apache-2.0

// Package serviceevents turns updates of services into what changed about them: ports, addresses, ports of addresses,
// traffic policies and session affinity that came or went.
//
// For one update, or one deletion, the events come in this order:
//
//  1. DeletePort, AddPort
//  2. AddIP
//  3. DeleteIPPort, AddIPPort, for one kind of address after the other
//  4. EnableTrafficPolicy, DisableTrafficPolicy; EnableSessionAffinity, DisableSessionAffinity
//  5. DeleteIP
//
// so that an address is there before its ports and goes after them. Ports go before others come, as they did in the
// retired project: programs written for it keep a port by less than all that makes it one (by service, protocol and
// number, say, whatever the address), and would otherwise take the new one for the old one and close it.
//
// A port is the same one as before when it has the same protocol and number. When anything else of it differs (its
// name, node port or target port), it is deleted, as it was, and added, as it is. That goes for the ports of
// addresses too.
package serviceevents

import (
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
)

// ServicesListener finds out what changed and tells the listeners that are not nil. Events that nobody listens to
// cost nothing. Listeners are to be set before the first service.
type ServicesListener struct {
	PortsListener           PortsListener
	IPsListener             IPsListener
	IPPortsListener         IPPortsListener
	TrafficPolicyListener   TrafficPolicyListener
	SessionAffinityListener SessionAffinityListener

	services map[string]*localv1.Service
}

// New returns a ServicesListener without listeners.
func New() *ServicesListener {
	return &ServicesListener{}
}

// SetService is called with a service that was added or updated. The service must not be changed afterwards.
func (sl *ServicesListener) SetService(svc *localv1.Service) {
	if sl.services == nil {
		sl.services = map[string]*localv1.Service{}
	}
	key := svc.NamespacedName()
	prev := sl.services[key]
	sl.services[key] = svc
	sl.update(prev, svc)
}

// DeleteService is called when a service is gone. One that was not set is no matter.
func (sl *ServicesListener) DeleteService(namespace, name string) {
	key := namespace + "/" + name
	if prev, ok := sl.services[key]; ok {
		delete(sl.services, key)
		sl.update(prev, nil)
	}
}

// update tells the difference between two versions of a service, one of which may be nil.
func (sl *ServicesListener) update(prev, curr *localv1.Service) {
	u := update{prev: prev, curr: curr}
	if sl.PortsListener != nil || sl.IPPortsListener != nil {
		u.ports = diffPorts(prev.GetPorts(), curr.GetPorts())
	}
	if sl.IPsListener != nil || sl.IPPortsListener != nil {
		u.diffIPs()
	}
	if l := sl.PortsListener; l != nil {
		u.tellPorts(l)
	}
	if l := sl.IPsListener; l != nil {
		for _, ips := range u.ips {
			for _, ip := range ips.added {
				l.AddIP(curr, ip, ips.kind)
			}
		}
	}
	if l := sl.IPPortsListener; l != nil {
		u.tellIPPorts(l)
	}
	if l := sl.TrafficPolicyListener; l != nil {
		u.tellTrafficPolicy(l, TrafficPolicyInternal, (*localv1.Service).GetInternalTrafficToLocal)
		u.tellTrafficPolicy(l, TrafficPolicyExternal, (*localv1.Service).GetExternalTrafficToLocal)
	}
	if l := sl.SessionAffinityListener; l != nil {
		u.tellSessionAffinity(l)
	}
	if l := sl.IPsListener; l != nil {
		for _, ips := range u.ips {
			for _, ip := range ips.removed {
				l.DeleteIP(prev, ip, ips.kind)
			}
		}
	}
}

// update is one update of a service, taken apart.
type update struct {
	prev, curr *localv1.Service
	ports      portsDiff
	ips        [3]ipsDiff
}

func (u *update) tellPorts(l PortsListener) {
	for _, p := range u.ports.gone {
		l.DeletePort(u.prev, p)
	}
	for _, p := range u.ports.came {
		l.AddPort(u.curr, p)
	}
}

func (u *update) tellIPPorts(l IPPortsListener) {
	for _, ips := range u.ips {
		u.tellGone(l, ips.kind, ips.kept, u.ports.gone)
		u.tellGone(l, ips.kind, ips.removed, u.ports.prev)
		u.tellCame(l, ips.kind, ips.kept, u.ports.came)
		u.tellCame(l, ips.kind, ips.added, u.ports.curr)
	}
}

func (u *update) tellGone(l IPPortsListener, kind IPKind, ips []string, ports []*localv1.PortMapping) {
	for _, ip := range ips {
		for _, p := range ports {
			l.DeleteIPPort(u.prev, ip, kind, p)
		}
	}
}

func (u *update) tellCame(l IPPortsListener, kind IPKind, ips []string, ports []*localv1.PortMapping) {
	for _, ip := range ips {
		for _, p := range ports {
			l.AddIPPort(u.curr, ip, kind, p)
		}
	}
}

func (u *update) tellTrafficPolicy(l TrafficPolicyListener, kind TrafficPolicyKind, local func(*localv1.Service) bool) {
	switch was, is := local(u.prev), local(u.curr); {
	case !was && is:
		l.EnableTrafficPolicy(u.curr, kind)
	case was && !is && u.curr != nil:
		l.DisableTrafficPolicy(u.curr, kind)
	case was && !is:
		l.DisableTrafficPolicy(u.prev, kind)
	}
}

func (u *update) tellSessionAffinity(l SessionAffinityListener) {
	was, is := GetSessionAffinity(u.prev.GetSessionAffinity()), GetSessionAffinity(u.curr.GetSessionAffinity())
	switch {
	case is.ClientIP == nil && was.ClientIP != nil:
		l.DisableSessionAffinity(u.prev)
	case is.ClientIP != nil && (was.ClientIP == nil || !proto.Equal(was.ClientIP.ClientIP, is.ClientIP.ClientIP)):
		l.EnableSessionAffinity(u.curr, is)
	}
}
