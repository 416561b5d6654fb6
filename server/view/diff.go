// SPDX-License-Identifier: Apache-2.0

package view

import "cmp"

// Diff compares two views of a service, each in the order of the keys. It calls remove for the keys that are gone
// and set for the endpoints that are new or look different.
func Diff(old, new []Endpoint, remove func(key string), set func(Endpoint)) {
	for len(old) != 0 || len(new) != 0 {
		switch order := compareHeads(old, new); {
		case order < 0:
			remove(old[0].Key())
			old = old[1:]
		case order > 0:
			set(new[0])
			new = new[1:]
		default:
			if !old[0].looksLike(new[0]) {
				set(new[0])
			}
			old, new = old[1:], new[1:]
		}
	}
}

func compareHeads(old, new []Endpoint) int {
	switch {
	case len(new) == 0:
		return -1
	case len(old) == 0:
		return 1
	default:
		return cmp.Compare(old[0].Key(), new[0].Key())
	}
}

// looksLike says that the node is told the same of both.
func (e Endpoint) looksLike(o Endpoint) bool {
	return e.Scope == o.Scope && (e.Endpoint == o.Endpoint || e.Wire() == o.Wire())
}
