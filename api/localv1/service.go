// SPDX-License-Identifier: Apache-2.0

package localv1

// NamespacedName returns namespace/name, which is also the service's path in the protocol.
func (x *Service) NamespacedName() string {
	return x.GetNamespace() + "/" + x.GetName()
}

// All returns a new set of all the service's addresses: cluster IPs, external IPs and load-balancer IPs.
func (x *ServiceIPs) All() *IPSet {
	all := x.AllIngress()
	all.AddSet(x.GetClusterIPs())
	return all
}

// AllIngress returns a new set of the addresses meant for clients outside the cluster: external and load-balancer IPs.
func (x *ServiceIPs) AllIngress() *IPSet {
	all := NewIPSet()
	all.AddSet(x.GetExternalIPs())
	all.AddSet(x.GetLoadBalancerIPs())
	return all
}

// SrcPorts returns the ports of the service side that are set: the port, then the node port.
func (x *PortMapping) SrcPorts() []int32 {
	ports := make([]int32, 0, 2)
	for _, p := range [...]int32{x.GetPort(), x.GetNodePort()} {
		if p != 0 {
			ports = append(ports, p)
		}
	}
	return ports
}

// ParseProtocol returns the protocol that Kubernetes calls s ("TCP", "UDP", "SCTP"), else UnknownProtocol.
func ParseProtocol(s string) Protocol {
	return Protocol(Protocol_value[s])
}
