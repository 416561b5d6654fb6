// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command kpng-mail gives mail servers the external IPs of their services, in both directions.
package main

import (
	"net/netip"
	"slices"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/dataplane"
)

func main() {
	c := &config{}
	dataplane.Backend{
		Name:   "kpng-mail",
		Short:  "Give mail servers on this node the external IPs of their services, in both directions",
		Render: render,
		Finish: c.finish, Flags: c, Options: c.options,
	}.Main()
}

// render is what a service asks for: each of its TCP ports, at each of its external IPs.
func render(item *dataplane.ServiceEndpoints) *dataplane.Service {
	s := &dataplane.Service{}
	for _, text := range item.Service.GetIPs().GetExternalIPs().All() {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		for _, port := range item.Service.GetPorts() {
			if port.GetProtocol() != localv1.Protocol_TCP {
				continue
			}
			s.Frontends = append(s.Frontends, dataplane.Frontend{
				Kind: dataplane.ExternalIP, IP: ip, Protocol: dataplane.TCP, Port: uint16(port.GetPort()),
				Pool: dataplane.Pool{Targets: targets(item.Endpoints, port, ip.Is6()), Empty: dataplane.Drop},
			})
		}
	}
	if len(s.Frontends) == 0 {
		return nil
	}
	return s
}

// targets are the pods on this node, at the port that each of them has for the service's.
func targets(endpoints []*localv1.Endpoint, port *localv1.PortMapping, v6 bool) []dataplane.Target {
	var list []dataplane.Target
	for _, ep := range endpoints {
		number, err := ep.PortMapping(port)
		if err != nil || !ep.GetLocal() {
			continue
		}
		for _, text := range ep.GetIPs().All() {
			ip, err := netip.ParseAddr(text)
			t := dataplane.Target{IP: ip, Port: uint16(number), Local: true, Terminating: ep.GetTerminating()}
			if err == nil && ip.Is6() == v6 && !dataplane.IsSpecial(ip) && !slices.Contains(list, t) {
				list = append(list, t)
			}
		}
	}
	return list
}

// config is the flag that kpng-mail has of its own.
type config struct{ cluster dataplane.Prefixes }

func (c *config) BindFlags(flags *pflag.FlagSet) {
	c.cluster.Bind(flags, "cluster-cidrs",
		"`CIDRs` of pods, services and nodes; connections of served pods to elsewhere leave with the external IP, in the families of these")
}

func (c *config) Validate() error { return c.cluster.Parse() }

func (c *config) options() dataplane.Options { return dataplane.Options{ClusterCIDRs: c.cluster.List} }

// finish adds the way out: connections that a pod opens leave with the address that its mail comes in at.
func (c *config) finish(s *dataplane.Service) *dataplane.Service {
	out := &dataplane.Service{Frontends: s.Frontends}
	seen := map[netip.Addr]bool{}
	for _, f := range s.Frontends {
		inFamily := func(p netip.Prefix) bool { return p.Addr().Is6() == f.Is6() }
		for _, t := range f.Pool.Targets {
			if !seen[t.IP] && slices.ContainsFunc(c.cluster.List, inFamily) {
				seen[t.IP] = true
				out.Egress = append(out.Egress, dataplane.Egress{Source: t.IP, IP: f.IP})
			}
		}
	}
	return out
}
