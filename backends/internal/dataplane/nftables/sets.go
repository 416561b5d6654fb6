// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// field is a part of a key or of data: its type, and the expression that nft is told it comes from.
type field struct {
	typ    string // as nft calls it
	number uint32 // as nft numbers it
	bytes  uint32
	typeof string
	// userData is typeof in the encoding that nft leaves with a set for itself.
	userData []byte
}

// Numbers that nft gives to its types and expressions; they are in what it leaves with sets, so they do not change.
const (
	exprMeta    = 9
	exprPayload = 7
	exprConcat  = 13
	exprNumgen  = 23

	protocolTransport = 11
	protocolIP        = 12
	protocolIP6       = 13

	metaL4Proto = 16
)

var (
	fieldProto = field{"inet_proto", 12, 1, "meta l4proto", typeofExpr(exprMeta, userNumber(0, metaL4Proto))}
	fieldPort  = field{"inet_service", 13, 2, "th dport", typeofExpr(exprPayload, userNumber(0, protocolTransport), userNumber(1, 2))}
	// fieldIndex is a number that is drawn; among how many is said in each rule, not here.
	fieldIndex = field{"integer", 4, 4, "numgen random mod 2",
		typeofExpr(exprNumgen, userNumber(0, unix.NFT_NG_RANDOM), userNumber(1, 2), userNumber(2, 0))}
)

// userNumber is a number in nft's own encoding: type, length, value.
func userNumber(typ byte, n uint32) []byte {
	return binary.NativeEndian.AppendUint32([]byte{typ, 4}, n)
}

func userNested(typ byte, parts ...[]byte) []byte {
	out := []byte{typ, 0}
	for _, p := range parts {
		out = append(out, p...)
	}
	out[1] = byte(len(out) - 2)
	return out
}

func typeofExpr(expr uint32, about ...[]byte) []byte {
	return append(userNumber(0, expr), userNested(1, about...)...)
}

// typeofFields is what a key or data is made of, in nft's own encoding.
func typeofFields(fields []field) []byte {
	if len(fields) == 1 {
		return fields[0].userData
	}
	parts := make([][]byte, len(fields))
	for i, f := range fields {
		parts[i] = userNested(byte(i), f.userData)
	}
	return typeofExpr(exprConcat, parts...)
}

// typeNumber is nft's number of a type, which for several is made of theirs.
func typeNumber(fields []field) (n uint32) {
	for _, f := range fields {
		n = n<<6 | f.number
	}
	return n
}

// width in registers of 4 bytes, if there are several.
func width(fields []field) (n uint32) {
	if len(fields) == 1 {
		return fields[0].bytes
	}
	for _, f := range fields {
		n += (f.bytes + 3) &^ 3
	}
	return n
}

// shared is a set or map that all services have elements in.
type shared struct {
	name    string
	key     []field
	data    []field // nothing: a set, or a map to verdicts
	verdict bool
	typeof  bool           // told by typeof, as one of its types has no name
	network []netip.Prefix // an interval set with just these
	ranges  bool
}

// definition is what is said of the set in nft's language.
func (s *shared) definition() string {
	names := func(fields []field) string {
		var all []string
		for _, f := range fields {
			if s.typeof {
				all = append(all, f.typeof)
			} else {
				all = append(all, f.typ)
			}
		}
		return strings.Join(all, " . ")
	}
	word, kind, of := "set", "type", names(s.key)
	switch {
	case s.verdict:
		word, of = "map", of+" : verdict"
	case s.data != nil:
		word, of = "map", of+" : "+names(s.data)
	}
	if s.typeof {
		kind = "typeof"
	}
	text := fmt.Sprintf("\t%s %s {\n\t\t%s %s\n", word, s.name, kind, of)
	if s.ranges {
		text += "\t\tflags interval\n"
	}
	return text
}

// affinitySet holds the clients of one target.
type affinitySet struct {
	name    string
	f       *family
	timeout time.Duration
}

// maxClients bounds what is remembered of a target's clients. Those beyond it have no affinity. The kernel makes a table for
// as many at once, of 128 KiB; it would be 1 MiB for what nft has where nothing is said, 65535.
const maxClients = 3 << 12

func (s affinitySet) definition() string {
	return fmt.Sprintf("\tset %s {\n\t\ttype %s\n\t\tsize %d\n\t\tflags dynamic,timeout\n\t\ttimeout %ds\n\t}\n",
		s.name, s.f.addr.typ, maxClients, int(s.timeout.Seconds()))
}

// anonymous is a set that belongs to one rule.
type anonymous struct {
	key      field
	verdicts []string       // a map from numbers, from 0, to chains
	network  []netip.Prefix // otherwise: an interval set
}

// Orders of bytes that nft is told of.
const (
	orderHost    = 1
	orderNetwork = 2
)

// What the parts are that nft leaves with a set.
const (
	userKeyOrder  = 0
	userDataOrder = 1
	userKeyTypeof = 3
	userTypeof    = 4
	userInterval  = 6
)

// name is how nft names sets of rules; the kernel counts them.
func (s *anonymous) name() string {
	if s.verdicts != nil {
		return "__map%d"
	}
	return "__set%d"
}

// userData is what nft leaves with a set for itself: without it, it shows numbers in the wrong order, or types by a
// number.
func (s *shared) userData() []byte {
	switch {
	case s.ranges:
		return userNumber(userKeyOrder, orderNetwork)
	case !s.typeof:
		return nil
	}
	order := uint32(0) // not one for all
	if len(s.data) == 1 {
		order = orderNetwork
	}
	out := append(userNumber(userKeyOrder, 0), userNumber(userDataOrder, order)...)
	out = append(out, userNested(userKeyTypeof, typeofFields(s.key))...)
	out = append(out, userNested(userTypeof, typeofFields(s.data))...)
	return append(out, userNumber(userInterval, 0)...)
}
