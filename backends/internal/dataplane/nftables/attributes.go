// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// attributes is netlink's encoding, grown in place: a transaction may have a hundred thousand elements, so each of them
// is written once and nothing of it is kept.
type attributes []byte

// add an attribute of bytes.
func (a *attributes) add(typ uint16, data ...byte) {
	at := a.open(typ)
	*a = append(*a, data...)
	a.close(at)
}

// text adds an attribute of a string.
func (a *attributes) text(typ uint16, s string) {
	at := a.open(typ)
	*a = append(append(*a, s...), 0)
	a.close(at)
}

// number adds an attribute of a number.
func (a *attributes) number(typ uint16, n uint32) {
	a.add(typ, binary.BigEndian.AppendUint32(nil, n)...)
}

// long adds an attribute of a number of 64 bits.
func (a *attributes) long(typ uint16, n uint64) {
	at := a.open(typ)
	*a = binary.BigEndian.AppendUint64(*a, n)
	a.close(at)
}

// address adds the bytes of an address.
func (a *attributes) address(ip netip.Addr) {
	if ip.Is4() {
		b := ip.As4()
		*a = append(*a, b[:]...)
		return
	}
	b := ip.As16()
	*a = append(*a, b[:]...)
}

// nest opens an attribute of attributes.
func (a *attributes) nest(typ uint16) int { return a.open(typ | unix.NLA_F_NESTED) }

// open an attribute; close takes what open returns.
func (a *attributes) open(typ uint16) int {
	at := len(*a)
	*a = binary.NativeEndian.AppendUint16(append(*a, 0, 0), typ)
	return at
}

// close sets the length, and fills up to where the next may begin.
func (a *attributes) close(at int) {
	binary.NativeEndian.PutUint16((*a)[at:], uint16(len(*a)-at))
	for len(*a)%unix.NLA_ALIGNTO != 0 {
		*a = append(*a, 0)
	}
}

// batch is messages to nf_tables, one behind the other, as they are sent.
type batch struct {
	attributes
	current int // where the message begins that is being written, or was last
	count   int
}

// message begins a message about something of the table. Each ends where the next begins.
func (b *batch) message(typ uint16, flags uint16) {
	b.header(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags)
	b.attributes = append(b.attributes, unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0)
}

// edge begins or ends the batch.
func (b *batch) edge(typ uint16) {
	b.header(typ, 0)
	b.attributes = append(b.attributes, unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
}

func (b *batch) header(typ, flags uint16) {
	b.finish()
	b.current = len(b.attributes)
	b.count++
	b.attributes = binary.NativeEndian.AppendUint32(b.attributes, 0)
	b.attributes = binary.NativeEndian.AppendUint16(b.attributes, typ)
	b.attributes = binary.NativeEndian.AppendUint16(b.attributes, unix.NLM_F_REQUEST|flags)
	b.attributes = append(b.attributes, make([]byte, 8)...) // no sequence, nor sender: one answer is waited for
}

// finish sets the length of the message that was written.
func (b *batch) finish() {
	if b.count > 0 {
		binary.NativeEndian.PutUint32(b.attributes[b.current:], uint32(len(b.attributes)-b.current))
	}
}

// acknowledge asks for an answer to the message that was written last.
func (b *batch) acknowledge() {
	const flags = 6
	at := b.attributes[b.current+flags:]
	binary.NativeEndian.PutUint16(at, binary.NativeEndian.Uint16(at)|unix.NLM_F_ACK)
}
