// SPDX-License-Identifier: Apache-2.0

// Package nstest asks the kernel what a dataplane does: it sends real packets through real rules, in network namespaces of
// the test's own, and looks at which pod answered and whom that pod took the client for.
//
//   - [New] builds the network (on internal/netlab): a client outside, two nodes, pods on each, both IP families.
//     The rules under test are those of node n1. Its pods answer over TCP, UDP, SCTP, ICMP echo and GRE.
//   - [Lab.Ask] sends one question from any host and returns who answered.
//   - [Stream] and [Datagrams] keep talking while the rules change and count what was lost.
//   - [Spread] tells whether answers are spread evenly (a chi-square bound).
//   - [AllIPCases] and [NATCases] are the packet-truth table: Services in, (pod, source address) out, as plain data. [Case.Run] checks one
//     case on any dataplane.Writer; the tests of this package run all of them on all writers we have.
package nstest
