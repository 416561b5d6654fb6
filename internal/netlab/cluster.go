// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"fmt"
	"net/netip"
)

// Cluster is the network that most tests want, in both IP families:
//
//	          switch 172.31.0.0/24, fd31::/64
//	   ┌──────────────┼────────────────┐
//	client           n1               n2          the nodes are routers
//	.100, ::100    .1, ::1          .2, ::2
//	             ┌────┴───┐      ┌─────┴──┐
//	            pod      pod    pod      pod      11.0.NODE.1+i, 1100::NODE01+i
//
// The i-th pod (from 1) of the n-th node (from 1) has 11.0.n.1+i and 1100::n01+i, so the first of n2 has
// 11.0.2.2 and 1100::202. Nodes know the way to each other's pods. The client knows the way to the nodes only: give
// it a [Host.Route] for the addresses a service is reached at. Replies find it from everywhere.
type Cluster struct {
	Client *Host
	Nodes  []*Node
}

// Node is a router with pods behind it.
type Node struct {
	*Host
	Pods []*Host
	// PodCIDRs are the prefixes of the node's pods, IPv4 then IPv6.
	PodCIDRs []netip.Prefix
}

// NodeSpec names a node and its pods. Names of pods should be unique in the lab: they are what servers answer with.
type NodeSpec struct {
	Name string
	Pods []string
}

// MaxNodes is how many nodes a cluster can have, and MaxPods how many pods each of them: the addresses are for reading.
const (
	MaxNodes = 9
	MaxPods  = 98
)

const clientNumber = 100

// gateway6 is what every pod knows its node as. Link-local, so that all of a node's cables can carry the same.
// IPv4 needs none: a node answers ARP for its own address on every cable, but not neighbour discovery.
var gateway6 = netip.MustParsePrefix("fe80::1/64")

// Cluster builds a cluster. Without nodes given it has n1 with the pods n1-a and n1-b and n2 with n2-a and n2-b.
func (l *Lab) Cluster(nodes ...NodeSpec) *Cluster {
	if len(nodes) == 0 {
		nodes = []NodeSpec{{"n1", []string{"n1-a", "n1-b"}}, {"n2", []string{"n2-a", "n2-b"}}}
	}
	if len(nodes) > MaxNodes {
		l.build("cluster", func() error { return fmt.Errorf("%d nodes: at most %d", len(nodes), MaxNodes) })
		nodes = nodes[:MaxNodes]
	}
	lan := l.Host("switch")
	lan.Bridge("br0")

	c := &Cluster{Client: l.Host("client")}
	l.plug(lan, c.Client, clientNumber)
	for i, spec := range nodes {
		n := &Node{Host: l.Router(spec.Name), PodCIDRs: podCIDRs(i + 1)}
		l.plug(lan, n.Host, i+1)
		for j, name := range spec.Pods {
			n.Pods = append(n.Pods, l.pod(n, name, i+1, j+1))
		}
		c.Nodes = append(c.Nodes, n)
	}
	for i, n := range c.Nodes {
		for j, other := range c.Nodes {
			if i == j {
				continue
			}
			for _, cidr := range other.PodCIDRs {
				n.Route(cidr, other.Addr(cidr.Addr().Is6()), "")
			}
		}
	}
	return c
}

// plug connects a host to the switch.
func (l *Lab) plug(lan, h *Host, number int) {
	l.Link(
		End{Host: h, Name: "eth0", Addrs: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 31, 0, byte(number)}), 24),
			netip.PrefixFrom(v6("fd31::", reads(number)), 64),
		}},
		End{Host: lan, Name: fmt.Sprintf("port%d", number), Bridge: "br0"},
	)
}

// pod connects a pod to its node the way cluster networks do: a cable of its own, a route per pod on the
// node, and in the pod nothing but a way to the node.
func (l *Lab) pod(n *Node, name string, node, pod int) *Host {
	h := l.Host(name)
	if pod > MaxPods {
		l.build("pod "+name, func() error { return fmt.Errorf("node %s: at most %d pods", n.Name, MaxPods) })
		return h
	}
	dev := fmt.Sprintf("pod%d", pod)
	l.Link(
		End{Host: h, Name: "eth0", Addrs: []netip.Prefix{single(podAddr4(node, pod)), single(podAddr6(node, pod))}},
		End{Host: n.Host, Name: dev, Addrs: []netip.Prefix{gateway6}},
	)
	for _, addr := range []netip.Addr{podAddr4(node, pod), podAddr6(node, pod)} {
		n.Route(single(addr), netip.Addr{}, dev)
	}
	if gw := n.Addr(false); gw.IsValid() { // not so after an earlier error
		h.DefaultRoute(gw, "eth0")
	}
	h.DefaultRoute(gateway6.Addr(), "eth0")
	return h
}

func podCIDRs(node int) []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{11, 0, byte(node), 0}), 24),
		netip.PrefixFrom(v6("1100::", uint16(node)<<8), 120),
	}
}

func podAddr4(node, pod int) netip.Addr {
	return netip.AddrFrom4([4]byte{11, 0, byte(node), byte(1 + pod)})
}

// podAddr6 has a last group that reads like the IPv4 address: 202 for the first pod of the second node.
func podAddr6(node, pod int) netip.Addr { return v6("1100::", reads(100*node+1+pod)) }

// reads is the number that is written in hexadecimal as n, of up to four digits, is in decimal.
func reads(n int) uint16 { return uint16(n/1000<<12 | n/100%10<<8 | n/10%10<<4 | n%10) }

// v6 is the address prefix with its last group set.
func v6(prefix string, last uint16) netip.Addr {
	b := netip.MustParseAddr(prefix).As16()
	b[14], b[15] = byte(last>>8), byte(last)
	return netip.AddrFrom16(b)
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
