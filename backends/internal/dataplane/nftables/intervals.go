// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"slices"

	nft "github.com/google/nftables"
)

// intervals are the elements of an interval set that holds prefixes of one family. Prefixes overlap only by
// containing each other, so dropping the contained ones is enough; neighbours may stay apart.
func intervals(prefixes []netip.Prefix) []nft.SetElement {
	if len(prefixes) == 0 {
		return nil
	}
	kept := disjoint(prefixes)
	zero := netip.IPv4Unspecified()
	if kept[0].Addr().Is6() {
		zero = netip.IPv6Unspecified()
	}
	var out []nft.SetElement
	if kept[0].Addr() != zero { // nft begins its sets with this, and expects it
		out = append(out, nft.SetElement{Key: zero.AsSlice(), IntervalEnd: true})
	}
	for _, p := range kept {
		out = append(out, nft.SetElement{Key: p.Addr().AsSlice()})
		if end := last(p).Next(); end.IsValid() {
			out = append(out, nft.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
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
