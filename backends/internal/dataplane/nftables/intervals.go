// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// encodeIntervals writes the elements of an interval set that holds prefixes of one family. Prefixes overlap only by
// containing each other, so dropping the contained ones is enough; neighbours may stay apart.
func encodeIntervals(l *elementList, prefixes []netip.Prefix) {
	if len(prefixes) == 0 {
		return
	}
	kept := disjoint(prefixes)
	zero := netip.IPv4Unspecified()
	if kept[0].Addr().Is6() {
		zero = netip.IPv6Unspecified()
	}
	if kept[0].Addr() != zero { // nft begins its sets with this, and expects it
		encodeBound(l.next(), zero, true)
	}
	for _, p := range kept {
		encodeBound(l.next(), p.Addr(), false)
		if end := last(p).Next(); end.IsValid() {
			encodeBound(l.next(), end, true)
		}
	}
}

// encodeBound is an address where an interval begins, or one where it has ended.
func encodeBound(a *attributes, ip netip.Addr, end bool) {
	item := a.nest(unix.NFTA_LIST_ELEM)
	if end {
		a.number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	key := a.nest(unix.NFTA_SET_ELEM_KEY)
	a.add(unix.NFTA_DATA_VALUE, ip.AsSlice()...)
	a.close(key)
	a.close(item)
}

// disjoint sorts prefixes and leaves out those that another one contains.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	kept := sorted[:0]
	for _, p := range sorted {
		if len(kept) == 0 || !kept[len(kept)-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return kept
}

// last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
