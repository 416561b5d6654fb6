// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kpng/api/localv1"
)

// parseAddress reads an IP address strictly: leading zeros (octal to some readers) and zones are refused. An IPv4
// address written as IPv6 (::ffff:10.0.0.1) is the IPv4 address.
func parseAddress(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}

// addresses gathers the well-formed ones of a list, in canonical form.
func addresses(field string, list []string, problems *Problems) *localv1.IPSet {
	set := &localv1.IPSet{}
	for i, text := range list {
		addr, ok := parseAddress(text)
		if !ok {
			problems.addf("%s[%d] %q is not an IP address: left out", field, i, text)
			continue
		}
		addTo(set, addr)
	}
	return sortSet(set)
}

func addTo(set *localv1.IPSet, addr netip.Addr) {
	if addr.Is4() {
		set.V4 = append(set.V4, addr.String())
	} else {
		set.V6 = append(set.V6, addr.String())
	}
}

// sortSet establishes what localv1.IPSet promises: each list sorted and without duplicates.
func sortSet(set *localv1.IPSet) *localv1.IPSet {
	set.V4, set.V6 = sortedUnique(set.V4), sortedUnique(set.V6)
	return set
}

func sortedUnique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

func isPort(n int32) bool { return n >= 1 && n <= 65535 }
