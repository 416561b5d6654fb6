// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Attributes of the kernel's include/uapi/linux/netfilter/nfnetlink_conntrack.h that the library does not name.
const (
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaFilterOrigFlags = 1
	// filterDestination is a bit of that: entries are to have the destination that the tuple says.
	filterDestination = 1 << 1
	// statusRedirected is IPS_DST_NAT of nf_conntrack_common.h.
	statusRedirected = 1 << 5
)

// query is what of the table the kernel is asked for. Kernels before 5.8 do not look at the address, those before 5.15 not
// at the status, and answer with more: what they answer is looked at in any case.
type query struct {
	v6 bool
	// to: only what was sent to this IPv4 address, if it is valid.
	to netip.Addr
	// redirected: only what was sent on to someone else.
	redirected bool
}

func (q query) family() uint8 {
	if q.v6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func (q query) attributes() (b []byte) {
	if q.to.IsValid() {
		b = nested(b, nl.CTA_TUPLE_ORIG, nested(nil, nl.CTA_TUPLE_IP, attribute(nil, nl.CTA_IP_V4_DST, q.to.AsSlice())))
		b = nested(b, ctaFilter, attribute(nil, ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, filterDestination)))
	}
	if q.redirected {
		b = attribute(b, nl.CTA_STATUS, number(statusRedirected))
		b = attribute(b, ctaStatusMask, number(statusRedirected))
	}
	return b
}

// entry is a flow and what tells it from all others: the tuple of its answers, which says who gives them, the zone it is
// in, and the id, which is made of the other tuple and the place in memory. The next entry with the same tuple of questions
// may have the same id.
type entry struct {
	flow
	family   uint8
	identity []byte // attributes
}

// parse reads a flow from an entry of the table. It is false if that has no addresses.
func parse(b []byte) (f flow, ok bool) {
	for kind, value := range attributes(b) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			if t := parseTuple(value); t.protocol != 0 {
				f.protocol, f.to = t.protocol, t.destination()
			}
		case nl.CTA_TUPLE_REPLY:
			t := parseTuple(value)
			f.by, f.byPort = t.source, t.sourcePort
		case nl.CTA_STATUS:
			f.dnat = word(value)&statusRedirected != 0
		case nl.CTA_MARK:
			f.mark = word(value)
		}
	}
	return f, f.to.Addr().IsValid() && f.by.IsValid()
}

// identity are the attributes that tell an entry from all others.
func identity(b []byte) (id []byte) {
	for kind, value := range attributes(b) {
		switch kind {
		case nl.CTA_TUPLE_REPLY:
			id = nested(id, kind, value)
		case nl.CTA_ZONE, nl.CTA_ID:
			id = attribute(id, kind, value)
		}
	}
	return id
}

// tuple is one direction of a flow.
type tuple struct {
	protocol                    uint8
	source, dest                netip.Addr
	sourcePort, destinationPort uint16
}

func (t *tuple) destination() netip.AddrPort { return netip.AddrPortFrom(t.dest, t.destinationPort) }

func parseTuple(b []byte) (t tuple) {
	for kind, value := range attributes(b) {
		switch kind {
		case nl.CTA_TUPLE_IP:
			t.parseAddresses(value)
		case nl.CTA_TUPLE_PROTO:
			t.parseProtocol(value)
		}
	}
	return t
}

func (t *tuple) parseAddresses(b []byte) {
	for kind, value := range attributes(b) {
		address, _ := netip.AddrFromSlice(value)
		switch kind {
		case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
			t.source = address
		case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
			t.dest = address
		}
	}
}

// parseProtocol leaves the ports 0 of protocols that frontends have none of. ICMP has an id instead, and what the kernel
// calls the ports of GRE are keys, which NAT may change.
func (t *tuple) parseProtocol(b []byte) {
	for kind, value := range attributes(b) {
		switch {
		case kind == nl.CTA_PROTO_NUM && len(value) == 1:
			t.protocol = value[0]
		case kind == nl.CTA_PROTO_SRC_PORT && len(value) == 2:
			t.sourcePort = binary.BigEndian.Uint16(value)
		case kind == nl.CTA_PROTO_DST_PORT && len(value) == 2:
			t.destinationPort = binary.BigEndian.Uint16(value)
		}
	}
	switch dataplane.Protocol(t.protocol) {
	case dataplane.TCP, dataplane.UDP, dataplane.SCTP:
	default:
		t.sourcePort, t.destinationPort = 0, 0
	}
}

func word(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
