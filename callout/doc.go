// SPDX-License-Identifier: Apache-2.0

// Package callout is the pipe-exec backend: at every change it runs a program of the user's and writes the
// state to it as JSON, one item a line. So a backend can be written in any language, and jq is one already.
//
// The way of a change through the room:
//
//  1. Cmd is the backend's command: flags, checks at start, and the sink that the client feeds.
//  2. sink turns each whole state that arrives into tasks: one for the whole state, or one for each service
//     that differs (--per-service). It only takes notes, so the client is never held up.
//  3. worker holds at most one waiting task a key and runs one task at a time; a newer task replaces the
//     waiting one, a failed one waits for its retry in the same place.
//  4. runner is one run: a process group of its own, the items encoded straight into its standard input, its
//     standard error logged, its time limited.
//
// Backing up is impossible by construction: what waits is bounded by the state itself.
package callout
