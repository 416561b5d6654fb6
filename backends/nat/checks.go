// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"

	"sigs.k8s.io/kpng/backends/nat/health"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// checked is what the health check node port of a service tells. A service without one has port 0.
func checked(item *fullstate.ServiceEndpoints) health.Service {
	svc := item.Service
	s := health.Service{Namespace: svc.GetNamespace(), Name: svc.GetName()}
	if !svc.GetExternalTrafficToLocal() || svc.GetHealthCheckNodePort() == 0 {
		return s
	}
	s.Port = portNumber(svc.GetHealthCheckNodePort())
	var count [2]int
	for i, v6 := range []bool{false, true} {
		seen := map[netip.Addr]bool{}
		for _, ep := range inFamily(item.Endpoints, v6) {
			// One that terminates may still get what comes, when there is no better one; but no more is to be sent here.
			if ep.GetLocal() && ep.GetScopes().GetExternal() && !ep.GetTerminating() {
				seen[ep.ip] = true
			}
		}
		count[i] = len(seen)
	}
	s.LocalEndpoints = max(count[0], count[1]) // a dual-stack pod is one
	return s
}

// observe has the health checks follow changes of services.
func observe(ports *health.Ports, list []changes.Change) {
	services := make(map[string]health.Service, len(list))
	for _, change := range list {
		s := health.Service{}
		if change.Op == changes.Set {
			s = checked(change.Item)
		}
		services[change.Item.Service.NamespacedName()] = s
	}
	ports.Update(services)
}

// listenAt are the node's addresses that node ports are served at; nil: at all.
func (c *Config) listenAt(node map[netip.Addr]bool) []netip.Addr {
	if len(c.NodePortAddresses.List) == 0 {
		return nil
	}
	list := []netip.Addr{}
	for ip := range node {
		if c.NodePortAddresses.Contains(ip) {
			list = append(list, ip)
		}
	}
	return list
}
