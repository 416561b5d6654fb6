// SPDX-License-Identifier: Apache-2.0

package serviceevents

import "sigs.k8s.io/kpng/api/localv1"

// In all events, svc is never nil: it is the service as it is now for what is there, and as it was for what is gone.

// PortsListener is told of the ports of services.
type PortsListener interface {
	AddPort(svc *localv1.Service, port *localv1.PortMapping)
	DeletePort(svc *localv1.Service, port *localv1.PortMapping)
}

// IPsListener is told of the addresses of services.
type IPsListener interface {
	AddIP(svc *localv1.Service, ip string, ipKind IPKind)
	DeleteIP(svc *localv1.Service, ip string, ipKind IPKind)
}

// IPPortsListener is told of each port of each address of services.
type IPPortsListener interface {
	AddIPPort(svc *localv1.Service, ip string, ipKind IPKind, port *localv1.PortMapping)
	DeleteIPPort(svc *localv1.Service, ip string, ipKind IPKind, port *localv1.PortMapping)
}

// TrafficPolicyListener is told when a policy of a service becomes Local, and when it is no more. The service of
// DisableTrafficPolicy is the one as it is now, if there still is one.
type TrafficPolicyListener interface {
	EnableTrafficPolicy(svc *localv1.Service, policyKind TrafficPolicyKind)
	DisableTrafficPolicy(svc *localv1.Service, policyKind TrafficPolicyKind)
}

// SessionAffinityListener is told when a service gets a session affinity or another one (another timeout), and when
// it has none any more.
type SessionAffinityListener interface {
	EnableSessionAffinity(svc *localv1.Service, sessionAffinity SessionAffinity)
	DisableSessionAffinity(svc *localv1.Service)
}

// SessionAffinity is the session affinity of a service: none, when ClientIP is nil.
type SessionAffinity struct {
	ClientIP *localv1.Service_ClientIP
}

// GetSessionAffinity returns the affinity that is in the SessionAffinity field of a service.
func GetSessionAffinity(affinity any) SessionAffinity {
	clientIP, _ := affinity.(*localv1.Service_ClientIP)
	return SessionAffinity{ClientIP: clientIP}
}
