// SPDX-License-Identifier: Apache-2.0

package store

import "time"

// historyKeys is how many changed keys a snapshot remembers at least. Who is further behind than that compares the
// trees key by key, which costs about 100 ns a service.
const historyKeys = 8192

// history is the list of keys that the last commits changed.
//
// go-immutable-radix does not let its users see inner nodes, so two trees cannot be walked together skipping what
// they share. A commit knows what it changed anyway: the list makes the difference of two snapshots cost the number
// of changes, without any walk.
//
// Snapshots share the array under changes. That is safe because only the newest snapshot is ever appended to, by
// the one writer, and beyond the length that any older snapshot sees.
type history struct {
	// base is the revision from which on changes are known.
	base    uint64
	changes []change
}

// change says that a commit set or deleted the value of a key.
type change struct {
	revision uint64
	event    int64 // when the source saw the cause, in Unix nanoseconds
	trigger  trigger
	node     bool // the key is a node's, not a service's
	key      string
}

// with returns the history that also knows the changes of one more commit, whose revision is given.
func (h history) with(changes []change, revision uint64) history {
	if len(changes) > historyKeys {
		return history{base: revision}
	}
	if len(h.changes)+len(changes) > 2*historyKeys {
		h = h.newest(historyKeys)
	}
	h.changes = append(h.changes, changes...)
	return h
}

// newest returns a copy of the last whole commits with no more than n keys.
func (h history) newest(n int) history {
	cut := len(h.changes) - n
	if cut <= 0 {
		return h
	}
	base := h.changes[cut-1].revision
	for cut < len(h.changes) && h.changes[cut].revision == base {
		cut++
	}
	kept := make([]change, len(h.changes)-cut, 2*historyKeys)
	copy(kept, h.changes[cut:])
	return history{base: base, changes: kept}
}

// since returns the changes after a revision, and whether all of them are known.
func (h history) since(revision uint64) ([]change, bool) {
	if revision < h.base {
		return nil, false
	}
	// The changes wanted are at the end, mostly very few.
	i := len(h.changes)
	for i > 0 && h.changes[i-1].revision > revision {
		i--
	}
	return h.changes[i:], true
}

// oldestEvent returns when the first of some changes was seen by its source; zero when there are none.
func oldestEvent(changes []change) time.Time {
	var oldest int64
	for _, c := range changes {
		if oldest == 0 || c.event < oldest {
			oldest = c.event
		}
	}
	if oldest == 0 {
		return time.Time{}
	}
	return time.Unix(0, oldest)
}
