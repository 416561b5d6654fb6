// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package driver is what the commands of the backends that program the kernel share: which dataplane writes, the
// settings of the kernel it needs, and the ways to run it: to stay, to show what would be written, to take it all away.
//
// To stay is a [Driver]. All goroutines meet in its ledger: what is desired, and how far the kernel is. One goroutine
// writes, in rounds, what changed since the last one. A transaction that is refused changes nothing, so that refused
// services are looked for with transactions that fail:
//
//   - A writer that can find out (see oracle) is asked; what it names is left out, the rest is written.
//   - Else a change of several services is divided into halves (see search), and at the start a few services at a time are
//     left out (see exclude), as the first transaction that succeeds ends what an earlier run served.
//
// What is refused stays in the kernel as it was, is named by [Driver.Ready] and in the log, and is tried again with
// back-off, alone. Everything else goes first, always.
package driver
