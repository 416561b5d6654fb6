// SPDX-License-Identifier: Apache-2.0

// Package conntrack removes from the kernel's table of connections the flows that a change made wrong. Rules are asked
// once for a flow; without this, datagrams of a client that keeps its port go on to a target that is gone, or
// nowhere although there are targets now.
//
// What is wrong is decided from the flow alone: it was sent to a frontend of a changed Service, and does not go to a target
// that this frontend has, or drains. So nothing that is right is removed, also not after a restart, when everything
// counts as changed. It does not matter who redirected the flow: what kube-proxy sent to a target that is right
// stays there when we take over from it, and goes when the target does.
//
// The table is listed once for a change set, and only if something in it can have made flows wrong. The kernel picks
// what it can: the family; the address, if all that changed is at one of IPv4; the flows that were redirected, if others cannot
// be wrong. What is left is looked at as it comes, so that a table of any size takes no memory, and an entry is removed
// only if it still goes where it went: not one that has taken its place meanwhile.
//
// # TCP
//
// TCP is left alone, unless [Cleaner.ResetTCP] is set: its connections end by themselves, as a pod that ends takes
// leave of its clients, or go on with a pod that is only not ready.
//
// With ResetTCP the flows to targets that are gone are removed like others, if the client is told: its next packet is new
// to the kernel, is sent to another target, which does not know the connection and resets it, or is refused by the
// writer. Clients outside, on other nodes, in pods of this node and on the node itself see "connection reset by
// peer" after about 20 ms (kernel 6.18); one that only listens sees it when it sends. Where nobody would answer the
// flow is left: the service is gone, so that the packet would go past us to an address that nobody has, or a pool without
// targets drops. With the sysctl net.netfilter.nf_conntrack_tcp_loose at 0 the kernel does not take up a connection in
// its midst: then a client is not told, and ResetTCP had better not be set.
package conntrack
