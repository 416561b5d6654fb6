// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"

	"github.com/google/nftables/expr"
)

// lookup is how targets are found: in a map of the family, by the frontend's own key and a number.
type lookup struct {
	f *family
	// kind is "" for frontends with an address and a port, "node" for node ports, "any" for all of an address.
	kind string
	// local pools have maps of their own, as a frontend may have both.
	local bool
}

func (l lookup) set() string {
	name := l.kind + "targets" + l.f.suffix
	if l.local {
		return "local" + name
	}
	return name
}

func (l lookup) key() []field {
	switch l.kind {
	case "node":
		return []field{fieldProto, fieldPort, fieldIndex}
	case "any":
		return []field{l.f.addr, fieldIndex}
	}
	return []field{l.f.addr, fieldProto, fieldPort, fieldIndex}
}

func (l lookup) data() []field {
	if l.kind == "any" {
		return []field{l.f.addr}
	}
	return []field{l.f.addr, fieldPort}
}

// loads put the key into registers from 1 on, with a number below n.
func (l lookup) loads(n int) (text string, exprs []expr.Any) {
	f, number := l.f, fmt.Sprintf("numgen random mod %d", n)
	switch l.kind {
	case "node":
		return "meta l4proto . th dport . " + number,
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, dport(9), draw(n, 10)}
	case "any":
		return f.ip + " daddr . " + number, append(f.is(), f.load(f.dst, 1), draw(n, f.second))
	}
	return f.ip + " daddr . meta l4proto . th dport . " + number,
		append(f.is(), f.load(f.dst, 1), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: f.second}, dport(f.third), draw(n, f.fourth))
}

// dnat redirects to the target with a number below n. Where there is none the rule does nothing.
func (l lookup) dnat(n int) part {
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(l.f.nfproto), RegAddrMin: 1}
	if l.kind != "any" {
		nat.RegProtoMin = l.f.second
	}
	text, exprs := l.loads(n)
	return part{
		text:  fmt.Sprintf("dnat %s to %s map @%s", l.f.ip, text, l.set()),
		exprs: append(exprs, &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: l.set()}, nat),
	}
}
