// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/internal/netlab"
)

// node is a machine to run a proxy on, a client that reaches Services through it, and a pod behind it that has the
// addresses of all endpoints:
//
//	client 10.8.0.2 ── 10.8.0.1 node 10.9.0.1 ── 10.9.0.2 pod, and 10.0.0.0/13
//
// Each proxy has one of its own; nothing of it is on the network of the machine.
type node struct {
	lab                 *netlab.Lab
	client, router, pod *netlab.Host
	server              *server
}

func newNode() (*node, error) {
	lab := netlab.New()
	n := &node{lab: lab, client: lab.Host("client"), router: lab.Router("node"), pod: lab.Host("pod")}
	prefix := netip.MustParsePrefix
	lab.Link(
		netlab.End{Host: n.client, Name: "eth0", Addrs: []netip.Prefix{prefix("10.8.0.2/24")}},
		netlab.End{Host: n.router, Name: "client", Addrs: []netip.Prefix{prefix("10.8.0.1/24"), prefix(nodeAddress + "/32")}})
	lab.Link(
		netlab.End{Host: n.pod, Name: "eth0", Addrs: []netip.Prefix{prefix("10.9.0.2/24")}},
		netlab.End{Host: n.router, Name: "pod", Addrs: []netip.Prefix{prefix("10.9.0.1/24")}})
	toNode, toPod := netip.MustParseAddr("10.8.0.1"), netip.MustParseAddr("10.9.0.2")
	n.client.Route(prefix(serviceCIDR), toNode, "")
	n.client.Route(prefix(endpointCIDR), toNode, "")
	n.router.Route(prefix(endpointCIDR), toPod, "")
	n.pod.DefaultRoute(netip.MustParseAddr("10.9.0.1"), "eth0")
	if err := errors.Join(lab.Err(), takeAll(n.pod, prefix(endpointCIDR))); err != nil {
		lab.Close()
		return nil, err
	}
	var err error
	if n.server, err = startServer(n.pod); err != nil {
		lab.Close()
		return nil, err
	}
	if err := n.awake(); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// awake waits until packets go from end to end: a neighbour that was asked for while a cable was not up yet is asked
// again a second later only, which must not be counted against a proxy.
func (n *node) awake() (err error) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if _, err = n.answers(context.Background(), netip.AddrPortFrom(endpointIP(0, 0), podPort), 20*probeTime); err == nil {
			return nil
		}
	}
	return fmt.Errorf("a node of network namespaces does not forward: %w", err)
}

// takeAll makes all addresses of a prefix the host's own.
func takeAll(h *netlab.Host, p netip.Prefix) error {
	lo, err := h.Netlink().LinkByName("lo")
	if err != nil {
		return err
	}
	return h.Netlink().RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
	})
}

func (n *node) close() {
	if n == nil {
		return
	}
	n.server.close()
	n.lab.Close()
}

// relay makes a server on the loopback of this process's network reachable at the same address on the node.
func (n *node) relay(address string) error {
	l, err := n.router.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go relayed(near, address)
		}
	}()
	return nil
}

func relayed(near net.Conn, address string) {
	defer near.Close()
	far, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	go func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	}()
	_, _ = io.Copy(near, far)
}

// probeTime is how long the answer to a connection's first packet may take. It is short as that packet may have been
// sent before the Service was served, and would not be sent again for a second.
const probeTime = 5 * time.Millisecond

// answers connects to an address once, and returns the last byte of the address of the endpoint that answered.
func (n *node) answers(ctx context.Context, to netip.AddrPort, within time.Duration) (byte, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := n.client.Dial(ctx, "tcp", to.String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_ = conn.(*net.TCPConn).SetLinger(0)
	var who [1]byte
	if _, err := io.ReadFull(conn, who[:]); err != nil {
		return 0, fmt.Errorf("%s accepts and says nothing: %w", to, err)
	}
	return who[0], nil
}
