// SPDX-License-Identifier: Apache-2.0

// Package dataplane is for programs outside of this repository that want the kernel to send packets somewhere: what
// kpng-allip and kpng-nat are built on, under names that anyone may import. docs/write-a-backend.md builds a backend with
// it, docs/dataplane.md says what happens to a packet and what may be relied on.
//
// There are three ways in, each built on the one before:
//
//  1. The model, on any operating system: a [Service] is "what is sent to these frontends goes to these targets". It is
//     plain data, and knows neither Kubernetes nor a kernel.
//  2. A [Writer], on Linux, makes the kernel do what the model says: [NewNFTables], [NewIPTables]. A [Cleaner] removes the
//     connection-tracking entries that a change made wrong. With these two a program keeps a loop of its own.
//  3. A [Backend], on Linux, is a whole command: a name, and a pure function from a Kubernetes Service and its endpoints to the
//     model. It brings the connection to kpng, the flags, the guard against addresses that nobody may serve, the
//     decision between two Services that want one address, retries, repair, and metrics.
//
// Writing needs NET_ADMIN and NET_RAW. Most names here are aliases: `go doc sigs.k8s.io/kpng/backends/internal/dataplane`
// documents the fields and methods of the model.
package dataplane
