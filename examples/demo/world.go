// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"net/netip"

	"sigs.k8s.io/kpng/internal/netlab"
)

// The names and addresses that the manifests use too.
const (
	thisNode  = "this-node"
	otherNode = "other-node"
	localPod  = "local-pod"
	otherPod  = "other-pod"

	servicePort = 6000
	otherPort   = 5353 // no port of the Service: it gets everything that is sent to its addresses
)

var externalIPs = []netip.Addr{netip.MustParseAddr("10.0.0.55"), netip.MustParseAddr("1000::55")}

// world is the demo's network.
type world struct {
	*netlab.Lab
	client, node, pod, farNode, far *netlab.Host
}

// newWorld builds it. The client knows that the external IPs are behind this node, as a router would be told by
// whatever announces them; the node itself has no idea of them yet.
func newWorld() (*world, error) {
	lab := netlab.New()
	c := lab.Cluster(
		netlab.NodeSpec{Name: thisNode, Pods: []string{localPod}},
		netlab.NodeSpec{Name: otherNode, Pods: []string{otherPod}},
	)
	w := &world{Lab: lab, client: c.Client, node: c.Nodes[0].Host, farNode: c.Nodes[1].Host}
	for _, ip := range externalIPs {
		c.Client.Route(netip.PrefixFrom(ip, ip.BitLen()), w.node.Addr(ip.Is6()), "")
	}
	w.pod, w.far = c.Nodes[0].Pods[0], c.Nodes[1].Pods[0]
	for _, pod := range []*netlab.Host{w.pod, w.far} {
		pod.Serve(servicePort, otherPort)
	}
	return w, lab.Err()
}
