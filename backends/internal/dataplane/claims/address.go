// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"maps"
	"slices"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// address is the state of one address; node ports are on the unspecified ones.
type address struct {
	owners map[dataplane.Key]string
	// firm are the keys that their owners have from the API server.
	firm map[dataplane.Key]bool
	// names are those of the owners, sorted, and held how much each has: who asks for the whole address asks for them.
	names []string
	held  map[string]int
	// waiting are the names that want a key and did not get it.
	waiting map[dataplane.Key]map[string]bool
}

func newAddress() *address {
	return &address{owners: map[dataplane.Key]string{}, firm: map[dataplane.Key]bool{}, held: map[string]int{}, waiting: map[dataplane.Key]map[string]bool{}}
}

// whole is the key of all of an address.
func whole(k dataplane.Key) dataplane.Key { return dataplane.Key{IP: k.IP} }

// taken tells who else has the key, or a part of it.
func (a *address) taken(name string, k dataplane.Key) string {
	all := whole(k)
	for _, key := range []dataplane.Key{k, all} {
		if owner := a.owners[key]; owner != "" && owner != name {
			return owner
		}
	}
	if k != all {
		return ""
	}
	for _, owner := range a.names[:min(2, len(a.names))] {
		if owner != name {
			return owner
		}
	}
	return ""
}

func (a *address) own(name string, k dataplane.Key, firm bool) {
	if delete(a.firm, k); firm {
		a.firm[k] = true
	}
	if a.owners[k] == name {
		return
	}
	a.owners[k] = name
	if a.held[name]++; a.held[name] == 1 && !k.IP.IsUnspecified() { // nobody has all node ports
		i, _ := slices.BinarySearch(a.names, name)
		a.names = slices.Insert(a.names, i, name)
	}
}

func (a *address) disown(name string, k dataplane.Key) {
	delete(a.owners, k)
	delete(a.firm, k)
	if a.held[name]--; a.held[name] > 0 {
		return
	}
	delete(a.held, name)
	if i, found := slices.BinarySearch(a.names, name); found {
		a.names = slices.Delete(a.names, i, i+1)
	}
}

// evict takes what stands in the way of a key from those who do not have it from the API server, and names them and those
// who waited for it. It is false, and nothing is taken, if there is somebody who has.
func (a *address) evict(name string, k dataplane.Key, touched map[string]bool) bool {
	var way []dataplane.Key
	for _, key := range a.meeting(k) {
		switch owner := a.owners[key]; {
		case owner == "" || owner == name:
		case a.firm[key]:
			return false
		default:
			way = append(way, key)
		}
	}
	for _, key := range way {
		touched[a.owners[key]] = true
		a.disown(a.owners[key], key)
		a.wake(key, touched)
	}
	return true
}

// meeting are the keys of which one Service has all or none.
func (a *address) meeting(k dataplane.Key) []dataplane.Key {
	if k == whole(k) {
		return slices.Collect(maps.Keys(a.owners))
	}
	return []dataplane.Key{k, whole(k)}
}

func (a *address) wait(name string, k dataplane.Key) {
	if a.waiting[k] == nil {
		a.waiting[k] = map[string]bool{}
	}
	a.waiting[k][name] = true
}

// stopWaiting tells whether it did wait.
func (a *address) stopWaiting(name string, k dataplane.Key) bool {
	names := a.waiting[k]
	if !names[name] {
		return false
	}
	if delete(names, name); len(names) == 0 {
		delete(a.waiting, k)
	}
	return true
}

// wake names those who may get something now that nobody has the key.
func (a *address) wake(k dataplane.Key, touched map[string]bool) {
	keys := []dataplane.Key{k, whole(k)}
	if k == whole(k) {
		keys = keys[:0]
		for key := range a.waiting {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		for name := range a.waiting[key] {
			touched[name] = true
		}
	}
}
