// SPDX-License-Identifier: Apache-2.0

package localv1

import (
	"net"
	"net/netip"
	"slices"
)

// NewIPSet returns the set of the given addresses. What does not parse as an address is left out.
func NewIPSet(ips ...string) *IPSet {
	set := &IPSet{}
	set.AddAll(ips)
	return set
}

// IsEmpty says whether the set holds no address. A nil set is empty.
func (set *IPSet) IsEmpty() bool {
	return len(set.GetV4()) == 0 && len(set.GetV6()) == 0
}

// First returns the first IPv4 address, else the first IPv6 address, else "".
func (set *IPSet) First() string {
	if v4 := set.GetV4(); len(v4) != 0 {
		return v4[0]
	}
	if v6 := set.GetV6(); len(v6) != 0 {
		return v6[0]
	}
	return ""
}

// Add adds one address and returns it parsed, or returns nil, and adds nothing, when s is no address.
//
// Addresses are kept in their canonical text, so that two spellings of one address are one entry. An IPv4 address
// written as IPv6 (::ffff:192.0.2.1) is the IPv4 address: that is what the kernel makes of it.
func (set *IPSet) Add(s string) net.IP {
	addr, text, ok := parse(s)
	if !ok {
		return nil
	}
	if addr.Is4() {
		set.V4 = insert(set.V4, text)
	} else {
		set.V6 = insert(set.V6, text)
	}
	as16 := addr.As16()
	return as16[:]
}

// AddAll adds the addresses, leaving out what does not parse.
func (set *IPSet) AddAll(ips []string) {
	for _, s := range ips {
		addr, text, ok := parse(s)
		switch {
		case !ok:
		case addr.Is4():
			set.V4 = append(set.V4, text)
		default:
			set.V6 = append(set.V6, text)
		}
	}
	set.V4, set.V6 = normalize(set.V4), normalize(set.V6)
}

// AddSet adds the addresses of another set, which may be nil.
func (set *IPSet) AddSet(other *IPSet) {
	if other.IsEmpty() {
		return
	}
	set.V4 = normalize(append(set.V4, other.V4...))
	set.V6 = normalize(append(set.V6, other.V6...))
}

// All returns a new slice of the IPv4 addresses followed by the IPv6 addresses; nil for a nil set.
func (set *IPSet) All() []string {
	if set == nil {
		return nil
	}
	all := make([]string, 0, len(set.V4)+len(set.V6))
	return append(append(all, set.V4...), set.V6...)
}

// Diff returns what to add to the set, and what to remove from it, to get the other one. Either may be nil.
func (set *IPSet) Diff(to *IPSet) (added, removed *IPSet) {
	added, removed = &IPSet{}, &IPSet{}
	added.V4, removed.V4 = diff(set.GetV4(), to.GetV4())
	added.V6, removed.V6 = diff(set.GetV6(), to.GetV6())
	return added, removed
}

// parse returns the address and its canonical text. Zones are refused, as net.ParseIP does: an address with a zone
// means nothing on another host.
func parse(s string) (addr netip.Addr, text string, ok bool) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, "", false
	}
	addr = addr.Unmap()
	var buf [48]byte
	canonical := addr.AppendTo(buf[:0])
	if string(canonical) == s {
		return addr, s, true // the usual case, without an allocation
	}
	return addr, string(canonical), true
}

func insert(list []string, s string) []string {
	i, found := slices.BinarySearch(list, s)
	if found {
		return list
	}
	return slices.Insert(list, i, s)
}

// normalize sorts and removes duplicates, in place.
func normalize(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// diff compares two lists, sorted ones without copying them.
func diff(from, to []string) (added, removed []string) {
	from, to = sorted(from), sorted(to)
	for len(from) > 0 && len(to) > 0 {
		switch {
		case from[0] == to[0]:
			from, to = from[1:], to[1:]
		case from[0] < to[0]:
			removed, from = append(removed, from[0]), from[1:]
		default:
			added, to = append(added, to[0]), to[1:]
		}
	}
	return append(added, to...), append(removed, from...)
}

// sorted returns the list itself when it is as this package makes it: a peer may have sent something else.
func sorted(list []string) []string {
	for i := 1; i < len(list); i++ {
		if list[i-1] >= list[i] {
			return normalize(slices.Clone(list))
		}
	}
	return list
}
