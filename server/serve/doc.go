// SPDX-License-Identifier: Apache-2.0

// Package serve hands the state of a store to those who watch it: over gRPC as localv1.Sets and globalv1.Sets
// ([Server]), or in the same process ([InProcess]).
//
// The way of a change: the store publishes a snapshot and wakes every watcher that has asked for more. Each takes
// the difference from the snapshot it last sent (localState, globalState), turns it into ops and writes these in
// frames of some 16 KiB (frames.go), or one by one to peers that know no batches. The bytes of services and
// endpoints were encoded when they were set; here they are only copied.
//
// The protocol is pull-based, so a watcher that does not read holds one snapshot and one frame, and nothing is ever
// queued for it. When it asks again it gets one difference.
package serve
