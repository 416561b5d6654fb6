// SPDX-License-Identifier: Apache-2.0

package localv1

import (
	"fmt"
	"net"
)

// AddAddress adds an address to the endpoint and returns it parsed, or nil when s is no address.
func (x *Endpoint) AddAddress(s string) net.IP {
	if x.IPs == nil {
		x.IPs = &IPSet{}
	}
	return x.IPs.Add(s)
}

// PortMapping returns the endpoint's own port for a port of its service.
//
// The ports of an EndpointSlice bear the names of the service's ports, and an unnamed service port makes an unnamed
// slice port, so the rules are:
//
//  1. A port with a name has the endpoint's port of that name. When there is none, the endpoint does not serve that
//     port (a named target port that this pod lacks), whatever the target port's number: an error.
//  2. A port without a name has the endpoint's port named as the target port, else the endpoint's unnamed port.
//  3. Else, when the service gives no name at all, it is the target port's number, else an error.
func (x *Endpoint) PortMapping(port *PortMapping) (int32, error) {
	name := port.GetName()
	if name == "" {
		name = port.GetTargetPortName()
	}
	if p, ok := x.override(name); ok {
		return p, nil
	}
	if port.GetName() == "" {
		if p, ok := x.override(""); ok {
			return p, nil
		}
	}
	if name != "" {
		return 0, fmt.Errorf("port %d: the endpoint has no port named %q", port.GetPort(), name)
	}
	if p := port.GetTargetPort(); p > 0 {
		return p, nil
	}
	return 0, fmt.Errorf("port %d: neither the service nor the endpoint says which target port it has", port.GetPort())
}

// override looks a port of the endpoint up. One without a number says nothing and does not count.
func (x *Endpoint) override(name string) (int32, bool) {
	for _, o := range x.GetPortOverrides() {
		if o.GetName() == name && o.GetPort() > 0 {
			return o.GetPort(), true
		}
	}
	return 0, false
}

// PortMappings maps the ports of a service to the endpoint's. Ports that the endpoint does not serve are left out. The
// key is the number alone: where a service has one number for two protocols with different target ports, use
// PortMapping.
func (x *Endpoint) PortMappings(ports []*PortMapping) map[int32]int32 {
	mappings := make(map[int32]int32, len(ports))
	for _, port := range ports {
		if p, err := x.PortMapping(port); err == nil {
			mappings[port.GetPort()] = p
		}
	}
	return mappings
}

// PortNameMappings maps the names of a service's ports to the endpoint's ports. Ports that the endpoint does not serve
// are left out.
func (x *Endpoint) PortNameMappings(ports []*PortMapping) map[string]int32 {
	mappings := make(map[string]int32, len(ports))
	for _, port := range ports {
		if p, err := x.PortMapping(port); err == nil {
			mappings[port.GetName()] = p
		}
	}
	return mappings
}

// Any says whether the endpoint may be used for any kind of traffic.
func (x *EndpointScopes) Any() bool {
	return x.GetInternal() || x.GetExternal()
}
