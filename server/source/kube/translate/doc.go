// SPDX-License-Identifier: Apache-2.0

// Package translate turns Kubernetes objects into kpng's own messages. It is where Kubernetes types end: sources call
// it, and nothing after it knows them.
//
// It is pure: no logging, no clock, no state. An object is outside input and is never trusted to be well formed. What
// cannot be carried is left out, the rest is carried, and the [Problems] returned say what was left out and why, so
// that the caller, which knows whether it has said so before, can log it.
//
// What the API server would have filled in (type, protocol, target port, …) is filled in here too, so that an object
// read from a file and the same object read from a cluster come out alike.
package translate

import "fmt"

// Problems say what of an object was left out: the field, what is wrong with it, and what became of it.
type Problems []string

func (p *Problems) addf(format string, args ...any) {
	*p = append(*p, fmt.Sprintf(format, args...))
}
