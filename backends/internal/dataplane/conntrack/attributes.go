// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// attributes are those in a message of netlink, or in an attribute that has others within. What is behind a malformed one
// is left out.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofNlAttr || n > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(kind, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min(aligned(n), len(b)):]
		}
	}
}

// attribute appends one.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, aligned(len(value))-len(value))...)
}

// nested appends an attribute that has others within.
func nested(b []byte, kind uint16, within []byte) []byte {
	return attribute(b, kind|unix.NLA_F_NESTED, within)
}

// number is an attribute's value that is a number: conntrack has them in the order of the network.
func number(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

func aligned(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
