// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// End is one end of a cable.
type End struct {
	Host *Host
	// Name of the interface; at most 15 bytes, unique in the host.
	Name string
	// Addrs are given to the interface.
	Addrs []netip.Prefix
	// Bridge, when set, is a bridge of the host (see [Host.Bridge]) that the interface becomes a port of.
	Bridge string
}

// Link lays a cable (a veth pair) between two hosts. Both ends are up and their addresses usable when it returns.
func (l *Lab) Link(a, b End) {
	l.build(fmt.Sprintf("link %s:%s - %s:%s", a.Host.Name, a.Name, b.Host.Name, b.Name), func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = a.Name
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: netlink.NsFd(b.Host.ns)}
		if err := a.Host.nl.LinkAdd(veth); err != nil {
			return fmt.Errorf("adding the pair: %w", err)
		}
		for _, end := range []End{a, b} {
			if err := end.configure(); err != nil {
				return fmt.Errorf("%s:%s: %w", end.Host.Name, end.Name, err)
			}
		}
		return nil
	})
}

func (e End) configure() error {
	h := e.Host
	link, err := h.nl.LinkByName(e.Name)
	if err != nil {
		return err
	}
	if e.Bridge != "" {
		br, err := h.nl.LinkByName(e.Bridge)
		if err != nil {
			return fmt.Errorf("bridge %s: %w", e.Bridge, err)
		}
		if err := h.nl.LinkSetMaster(link, br); err != nil {
			return fmt.Errorf("joining bridge %s: %w", e.Bridge, err)
		}
	}
	for _, p := range e.Addrs {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.nl.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
		if p.Addr().IsLinkLocalUnicast() {
			continue // nothing that anyone else could reach the host at
		}
		h.mu.Lock()
		h.addrs = append(h.addrs, p.Addr())
		h.mu.Unlock()
	}
	return h.nl.LinkSetUp(link)
}

// Bridge adds a switch to the host, for [End.Bridge].
func (h *Host) Bridge(name string) {
	h.lab.build(fmt.Sprintf("bridge %s:%s", h.Name, name), func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		br := &netlink.Bridge{LinkAttrs: attrs}
		if err := h.nl.LinkAdd(br); err != nil {
			return err
		}
		return h.nl.LinkSetUp(br)
	})
}

// Route sends packets for dst through a gateway, an interface, or both (then the gateway need not be in any
// prefix of the interface). The zero values leave one out.
func (h *Host) Route(dst netip.Prefix, via netip.Addr, dev string) {
	h.lab.build(fmt.Sprintf("host %s: route %s via %s dev %s", h.Name, dst, via, dev), func() error {
		r := &netlink.Route{Dst: ipNet(dst)}
		if via.IsValid() {
			r.Gw = via.AsSlice()
		}
		if dev != "" {
			link, err := h.nl.LinkByName(dev)
			if err != nil {
				return err
			}
			r.LinkIndex = link.Attrs().Index
			if via.IsValid() {
				r.Flags = int(netlink.FLAG_ONLINK)
			} else {
				r.Scope = netlink.SCOPE_LINK
			}
		}
		return h.nl.RouteReplace(r)
	})
}

// DefaultRoute is Route for all addresses of the gateway's family.
func (h *Host) DefaultRoute(via netip.Addr, dev string) {
	everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if via.Is6() {
		everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	h.Route(everything, via, dev)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
