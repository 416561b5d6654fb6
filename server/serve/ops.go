// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"sigs.k8s.io/kpng/api/localv1"
)

// opWriter takes the ops of a change set. Errors are sticky: after one, calls do nothing, and end returns it.
type opWriter interface {
	reset()
	// set adds or replaces a value. The bytes are value followed by suffix.
	set(set localv1.Set, path path, value, suffix string)
	remove(set localv1.Set, path path)
	// triggered gives the values set and removed from now on their OpItem.TriggeredAt.
	triggered(at int64)
	// end closes the change set with Sync.
	end() error
}

// path is a path on the wire in parts, so that it need not be joined before it is copied: a service or node (key
// alone), or key, a slash, and the key of an endpoint.
type path struct{ key, endpoint string }

func (p path) len() int {
	if p.endpoint == "" {
		return len(p.key)
	}
	return len(p.key) + 1 + len(p.endpoint)
}

func (p path) append(b []byte) []byte {
	b = append(b, p.key...)
	if p.endpoint != "" {
		b = append(b, '/')
		b = append(b, p.endpoint...)
	}
	return b
}

func (p path) String() string { return string(p.append(make([]byte, 0, p.len()))) }
