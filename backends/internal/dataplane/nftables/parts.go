// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// part is a piece of a rule, both as nft's language has it and as the kernel has it. The text tells everything that the
// expressions do, so rules are equal if their texts are.
type part struct {
	text  string
	exprs []expr.Any
	// set is an anonymous set that the last of exprs looks up; its ID is filled in when it is written.
	set *anonymous
	// comment of the rule, if this is one.
	comment string
}

// comment ends a rule.
func comment(text string) part { return part{text: "comment " + strconv.Quote(text), comment: text} }

// rule of a chain.
type rule []part

func (r rule) text() string {
	var b strings.Builder
	for i, p := range r {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(p.text)
	}
	return b.String()
}

// family is what differs between IPv4 and IPv6.
type family struct {
	suffix   string // of names
	ip       string // in nft's language
	nfproto  byte
	src, dst uint32 // offsets in the header
	bytes    uint32
	addr     field
	// second to fourth are the registers behind an address in register 1.
	second, third, fourth uint32
	loopback              netip.Prefix
}

var (
	family4 = &family{"4", "ip", unix.NFPROTO_IPV4, 12, 16, 4,
		field{"ipv4_addr", 7, 4, "ip daddr", typeofExpr(exprPayload, userNumber(0, protocolIP), userNumber(1, 12))},
		9, 10, 11, netip.MustParsePrefix("127.0.0.0/8")}
	family6 = &family{"6", "ip6", unix.NFPROTO_IPV6, 8, 24, 16,
		field{"ipv6_addr", 8, 16, "ip6 daddr", typeofExpr(exprPayload, userNumber(0, protocolIP6), userNumber(1, 9))},
		unix.NFT_REG_2, 13, 14, netip.MustParsePrefix("::1/128")}
)

func familyOf(a netip.Addr) *family {
	if a.Is6() {
		return family6
	}
	return family4
}

// is restricts a rule to the family. nft leaves it out of what it shows where it follows from the rest.
func (f *family) is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.nfproto}},
	}
}

func (f *family) load(offset, reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.bytes}
}

// in is a match of the packet's "saddr" or "daddr" with a named set.
func (f *family) in(field, set string, not bool) part {
	op := " "
	if not {
		op = " != "
	}
	return part{
		text:  f.ip + " " + field + op + "@" + set,
		exprs: append(f.is(), f.load(f.offset(field), 1), &expr.Lookup{SourceRegister: 1, SetName: set, Invert: not}),
	}
}

func (f *family) offset(field string) uint32 {
	if field == "saddr" {
		return f.src
	}
	return f.dst
}

// pairIn matches the pair of source and destination with a named set.
func (f *family) pairIn(set string) part {
	return part{
		text:  fmt.Sprintf("%s saddr . %s daddr @%s", f.ip, f.ip, set),
		exprs: append(f.is(), f.load(f.src, 1), f.load(f.dst, f.second), &expr.Lookup{SourceRegister: 1, SetName: set}),
	}
}

// notFrom matches sources outside of the prefixes.
func (f *family) notFrom(prefixes []netip.Prefix) part {
	names := make([]string, len(prefixes))
	for i, p := range prefixes {
		names[i] = p.String()
	}
	return part{
		text:  fmt.Sprintf("%s saddr != { %s }", f.ip, strings.Join(names, ", ")),
		exprs: append(f.is(), f.load(f.src, 1), &expr.Lookup{SourceRegister: 1, Invert: true}),
		set:   &anonymous{key: f.addr, network: prefixes},
	}
}

// notTo matches destinations outside of a prefix.
func (f *family) notTo(p netip.Prefix) part { return f.compare("daddr", "!= ", expr.CmpOpNeq, p) }

// from matches sources in a prefix.
func (f *family) from(p netip.Prefix) part { return f.compare("saddr", "", expr.CmpOpEq, p) }

func (f *family) compare(field, text string, op expr.CmpOp, p netip.Prefix) part {
	mask, zero := make([]byte, f.bytes), make([]byte, f.bytes)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	name := p.String()
	exprs := append(f.is(), f.load(f.offset(field), 1))
	if p.IsSingleIP() {
		name = p.Addr().String()
	} else {
		exprs = append(exprs, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.bytes, Mask: mask, Xor: zero})
	}
	return part{
		text:  fmt.Sprintf("%s %s %s%s", f.ip, field, text, name),
		exprs: append(exprs, &expr.Cmp{Op: op, Register: 1, Data: p.Addr().AsSlice()}),
	}
}

// byPort goes on where a map of address, protocol and port says.
func (f *family) byPort(set string) part {
	return part{
		text: fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @%s", f.ip, set),
		exprs: append(f.is(), f.load(f.dst, 1), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: f.second},
			dport(f.third), &expr.Lookup{SourceRegister: 1, SetName: set, IsDestRegSet: true}),
	}
}

// byAddress goes on where a map of addresses says.
func (f *family) byAddress(set string) part {
	return part{
		text:  fmt.Sprintf("%s daddr vmap @%s", f.ip, set),
		exprs: append(f.is(), f.load(f.dst, 1), &expr.Lookup{SourceRegister: 1, SetName: set, IsDestRegSet: true}),
	}
}

// byNodePort goes on where a map of protocol and port says.
func byNodePort(set string) part {
	return part{
		text: "meta l4proto . th dport vmap @" + set,
		exprs: []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, dport(9),
			&expr.Lookup{SourceRegister: 1, SetName: set, IsDestRegSet: true}},
	}
}

func dport(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

// fibLocal matches packets whose "saddr" or "daddr" is the node's own.
func fibLocal(field string) part {
	return part{
		text: "fib " + field + " type local",
		exprs: []expr.Any{
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: field == "saddr", FlagDADDR: field == "daddr"},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		},
	}
}

func l4proto(p dataplane.Protocol) part {
	return part{
		text: "meta l4proto " + p.String(),
		exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(p)}},
		},
	}
}

// marked matches packets ("meta") or connections ("ct") whose mark has any of the bits.
func marked(of string, bits uint32) part { return compareMark(of, bits, "!=", expr.CmpOpNeq) }

// unmarked matches those whose mark has none of the bits.
func unmarked(of string, bits uint32) part { return compareMark(of, bits, "==", expr.CmpOpEq) }

func compareMark(of string, bits uint32, text string, op expr.CmpOp) part {
	return part{
		text:  fmt.Sprintf("%s mark & 0x%08x %s 0x00000000", of, bits, text),
		exprs: []expr.Any{loadMark(of), and(bits, 0), &expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)}},
	}
}

// setMark sets bits of a mark.
func setMark(of string, bits uint32) part {
	return part{
		text:  fmt.Sprintf("%s mark set %s mark | 0x%08x", of, of, bits),
		exprs: []expr.Any{loadMark(of), and(^bits, bits), storeMark(of)},
	}
}

// clearMark clears bits of a packet's mark.
func clearMark(bits uint32) part {
	return part{
		text:  fmt.Sprintf("meta mark set meta mark & 0x%08x", ^bits),
		exprs: []expr.Any{loadMark("meta"), and(^bits, 0), storeMark("meta")},
	}
}

func and(mask, xor uint32) expr.Any {
	n := binaryutil.NativeEndian
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: n.PutUint32(mask), Xor: n.PutUint32(xor)}
}

func loadMark(of string) expr.Any {
	if of == "ct" {
		return &expr.Ct{Key: expr.CtKeyMARK, Register: 1}
	}
	return &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}
}

func storeMark(of string) expr.Any {
	if of == "ct" {
		return &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}
	}
	return &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}
}

func verdict(kind expr.VerdictKind, chain string) part {
	text := map[expr.VerdictKind]string{expr.VerdictGoto: "goto " + chain, expr.VerdictJump: "jump " + chain, expr.VerdictDrop: "drop"}[kind]
	return part{text: text, exprs: []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}}
}

func goTo(chain string) part { return verdict(expr.VerdictGoto, chain) }

var (
	drop  = part{text: "drop", exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}}
	reset = part{text: "reject with tcp reset", exprs: []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}
	// unreachable is the family's own kind of "port unreachable".
	unreachable = part{text: "reject with icmpx port-unreachable", exprs: []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}}
	invalid = part{text: "ct state invalid", exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, and(expr.CtStateBitINVALID, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}}
	masquerade = part{text: "masquerade fully-random", exprs: []expr.Any{&expr.Masq{FullyRandom: true}}}
)

// snatBy gives the source address that a map of source addresses has.
func (f *family) snatBy(set string) part {
	return part{
		text: fmt.Sprintf("snat %s to %s saddr map @%s", f.ip, f.ip, set),
		exprs: append(f.is(), f.load(f.src, 1), &expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: set},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.nfproto), RegAddrMin: 1}),
	}
}

// place is a target as a rule has it: without a port if there are none.
type place struct {
	ip   netip.Addr
	port uint16
}

func (p place) text() string {
	if p.port == 0 {
		return p.ip.String()
	}
	return p.ip.String() + " . " + strconv.Itoa(int(p.port))
}

// dnatTo redirects to one place.
func (f *family) dnatTo(p place) part {
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: 1}
	exprs := []expr.Any{&expr.Immediate{Register: 1, Data: p.ip.AsSlice()}}
	text := p.ip.String()
	if p.port != 0 {
		text = netip.AddrPortFrom(p.ip, p.port).String()
		nat.RegProtoMin = f.second
		exprs = append(exprs, &expr.Immediate{Register: f.second, Data: binaryutil.BigEndian.PutUint16(p.port)})
	}
	return part{text: "dnat " + f.ip + " to " + text, exprs: append(exprs, nat)}
}

// gotoAny goes on in one of several chains, at random.
func gotoAny(chains []string) part {
	texts := make([]string, len(chains))
	for i, c := range chains {
		texts[i] = strconv.Itoa(i) + " : goto " + c
	}
	return part{
		text: fmt.Sprintf("numgen random mod %d vmap { %s }", len(chains), strings.Join(texts, ", ")),
		exprs: []expr.Any{
			draw(len(chains), 1),
			&expr.Lookup{SourceRegister: 1, IsDestRegSet: true},
		},
		set: &anonymous{key: fieldIndex, verdicts: chains},
	}
}

// draw is a number from 0 to below n, at random.
func draw(n int, register uint32) expr.Any {
	return &expr.Numgen{Register: register, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM}
}

// remember adds the client to a set, or makes it stay there for the set's time from now.
func (f *family) remember(set string) part {
	return part{
		text: fmt.Sprintf("update @%s { %s saddr }", set, f.ip),
		exprs: append(f.is(), f.load(f.src, 1),
			&expr.Dynset{SrcRegKey: 1, SetName: set, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE)}),
	}
}
