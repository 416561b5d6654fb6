// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// The chains that are always there. Services add rules to ports, nodePorts, addresses, the refusals and egressFrom; the
// others never change.
const (
	services    = "SERVICES"    // nat, from PREROUTING and OUTPUT: finds the frontend
	ports       = "PORTS"       // nat: frontends with an address and a port
	nodePorts   = "NODEPORTS"   // nat: node ports, for addresses of this node
	addresses   = "ADDRESSES"   // nat: frontends that take all of an address
	offCluster  = "OFFCLUSTER"  // nat: marks for masquerade what comes from outside the cluster
	postrouting = "POSTROUTING" // nat, from POSTROUTING: changes source addresses
	masquerade  = "MASQUERADE"  // nat: to this node's
	egress      = "EGRESS"      // nat: to a service's, for what goes out of the cluster
	egressFrom  = "EGRESSFROM"  // nat: by pod

	forward     = "FORWARD"    // filter, from FORWARD: what we redirected may pass
	refuse      = "REFUSE"     // filter, from INPUT, FORWARD and OUTPUT: what is not redirected because there is nowhere to go
	refusePorts = "REFUSEPORT" // filter: frontends with an address and a port
	refuseNode  = "REFUSENODE" // filter: node ports
	refuseAddrs = "REFUSEADDR" // filter: frontends that take all of an address
)

// baseChains are the fixed chains of a table in a family, with the rules that are not a Service's.
func (c *compiler) baseChains(f family, t table) rulesOf {
	if t == filter {
		return rulesOf{
			c.base(forward): c.forwardRules(),
			c.base(refuse): append(append([]rule{join(jump(c.base(refusePorts)))},
				c.toNode(f, c.base(refuseNode))...), join(jump(c.base(refuseAddrs)))),
			c.base(refusePorts): nil, c.base(refuseNode): nil, c.base(refuseAddrs): nil,
		}
	}
	return rulesOf{
		c.base(services): append(append([]rule{join(jump(c.base(ports)))},
			c.toNode(f, c.base(nodePorts))...), join(jump(c.base(addresses)))),
		c.base(ports): nil, c.base(nodePorts): nil, c.base(addresses): nil,
		c.base(offCluster): append(c.ifCluster(f, "-s", "-j RETURN"), join(setMark("MARK", c.MarkAlways))),
		c.base(postrouting): {
			join(marked("mark", c.MarkAlways), jump(c.base(masquerade))),
			join("-m conntrack ! --ctstate DNAT", jump(c.base(egress))),
		},
		// The mark is taken away, so that nothing behind us, such as a tunnel, takes the packet for one to masquerade.
		c.base(masquerade): {
			rule(fmt.Sprintf("-j MARK --set-xmark 0x0/0x%x", c.MarkAlways)),
			"-j MASQUERADE --random-fully",
		},
		c.base(egress):     append(c.ifCluster(f, "-d", "-j RETURN"), join(jump(c.base(egressFrom)))),
		c.base(egressFrom): nil,
	}
}

// forwardRules end the way of what is invalid before they accept what we redirected.
func (c *compiler) forwardRules() []rule {
	accept := join(marked("connmark", c.ConnMark), "-j ACCEPT")
	if c.DropInvalid {
		return []rule{join("-m conntrack --ctstate INVALID", drop), accept}
	}
	return []rule{accept}
}

// toNode leads packets for this node's addresses to a chain about node ports.
func (c *compiler) toNode(f family, chain string) []rule {
	const local = "-m addrtype --dst-type LOCAL"
	if len(c.NodePortCIDRs) == 0 {
		loopback := [...]string{"! -d 127.0.0.0/8", "! -d ::1/128"}[f]
		return []rule{join(loopback, local, jump(chain))}
	}
	var rules []rule
	for _, p := range c.NodePortCIDRs {
		if f.has(p.Addr()) {
			rules = append(rules, join(narrow("-d", p), local, jump(chain)))
		}
	}
	return rules
}

// ifCluster is a rule for each prefix of the cluster.
func (c *compiler) ifCluster(f family, direction, target string) []rule {
	var rules []rule
	for _, p := range c.ClusterCIDRs {
		if f.has(p.Addr()) {
			rules = append(rules, join(narrow(direction, p), target))
		}
	}
	return rules
}

// compiler turns the model into rules. It is pure.
type compiler struct {
	dataplane.Options
	names
}

func newCompiler(options dataplane.Options) *compiler {
	options = options.Complete()
	return &compiler{Options: options, names: newNames(options.Owner)}
}

func (f family) has(ip netip.Addr) bool { return ip.Is6() == (f == v6) }

// narrow matches a prefix; the prefix of everything is no match at all, and is not shown as one.
func narrow(direction string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return direction + " " + p.String()
}
