// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kpng/api/localv1"
)

// servicePorts keeps the order of the Service. Of several ports with the same protocol and number, which no API
// server lets through, the first counts.
func servicePorts(ports []corev1.ServicePort, problems *Problems) []*localv1.PortMapping {
	type key struct {
		protocol localv1.Protocol
		port     int32
	}
	var out []*localv1.PortMapping
	seen := make(map[key]*localv1.PortMapping, len(ports))
	for i := range ports {
		mapping := servicePort(i, &ports[i], problems)
		if mapping == nil {
			continue
		}
		at := key{mapping.Protocol, mapping.Port}
		if first := seen[at]; first != nil {
			if first.Name != mapping.Name || first.TargetPort != mapping.TargetPort ||
				first.TargetPortName != mapping.TargetPortName || first.NodePort != mapping.NodePort {
				problems.addf("spec.ports[%d]: port %d/%s is there twice: the first counts", i, mapping.Port, mapping.Protocol)
			}
			continue
		}
		seen[at] = mapping
		out = append(out, mapping)
	}
	return out
}

func servicePort(i int, port *corev1.ServicePort, problems *Problems) *localv1.PortMapping {
	mapping := &localv1.PortMapping{Name: port.Name, Protocol: protocol(port.Protocol), Port: port.Port}
	if mapping.Protocol == localv1.Protocol_UnknownProtocol {
		problems.addf("spec.ports[%d].protocol %q is not known (TCP, UDP and SCTP are): the port is left out", i, port.Protocol)
		return nil
	}
	if !isPort(port.Port) {
		problems.addf("spec.ports[%d].port %d is not in 1..65535: the port is left out", i, port.Port)
		return nil
	}
	switch {
	case port.NodePort == 0 || isPort(port.NodePort):
		mapping.NodePort = port.NodePort
	default:
		problems.addf("spec.ports[%d].nodePort %d is not in 1..65535: left out", i, port.NodePort)
	}
	switch target := port.TargetPort; {
	case target.Type == intstr.String && target.StrVal != "":
		mapping.TargetPortName = target.StrVal
	case target.Type == intstr.String || target.IntVal == 0:
		mapping.TargetPort = port.Port // as the API server does
	case isPort(target.IntVal):
		mapping.TargetPort = target.IntVal
	default:
		problems.addf("spec.ports[%d].targetPort %d is not in 1..65535: the port is left out", i, target.IntVal)
		return nil
	}
	return mapping
}

// protocol takes a missing one for TCP, as the API server does.
func protocol(p corev1.Protocol) localv1.Protocol {
	switch p {
	case "", corev1.ProtocolTCP:
		return localv1.Protocol_TCP
	case corev1.ProtocolUDP:
		return localv1.Protocol_UDP
	case corev1.ProtocolSCTP:
		return localv1.Protocol_SCTP
	}
	return localv1.Protocol_UnknownProtocol
}

// slicePorts returns the ports of an EndpointSlice sorted by name. A port without a number stands for all ports and
// says nothing about where a service's port leads.
func slicePorts(ports []discoveryv1.EndpointPort, problems *Problems) []*localv1.PortName {
	var out []*localv1.PortName
	seen := make(map[string]int32, len(ports))
	for i := range ports {
		if ports[i].Port == nil {
			continue
		}
		port := &localv1.PortName{Port: *ports[i].Port}
		if ports[i].Name != nil {
			port.Name = *ports[i].Name
		}
		if !isPort(port.Port) {
			problems.addf("ports[%d].port %d is not in 1..65535: the port is left out", i, port.Port)
			continue
		}
		if first, twice := seen[port.Name]; twice {
			if first != port.Port {
				problems.addf("ports[%d]: port name %q is there twice: the first counts", i, port.Name)
			}
			continue
		}
		seen[port.Name] = port.Port
		out = append(out, port)
	}
	slices.SortFunc(out, func(a, b *localv1.PortName) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
