// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the plain model of what a service proxy makes a kernel do: traffic to this frontend goes to
// these targets. It knows neither Kubernetes nor a kernel. A backend renders its services into it, which is pure and
// quick to test; a [Writer] makes the kernel follow. There are two writers, in the folders nftables and iptables.
//
// # A life
//
//  1. A backend renders each Kubernetes Service that it is handed into a [Service], and leaves out what it must not serve.
//  2. Package claims sees to it that no two Services hold one frontend: the first that came keeps it.
//  3. Package syncer holds the desired state, calls [Writer.Replace] once and [Writer.Apply] for every change after that,
//     retries, finds the Service that the kernel refuses, and has the writer's work checked and repaired.
//  4. Package conntrack removes the flows that a change made wrong.
//
// # What happens to a packet
//
// Only the first packet of a connection is looked at, whether it comes from outside, from a pod, or from the node itself:
//
//  1. A frontend with a port that fits (address, protocol and port; then node port) is looked for, then one of
//     [Any] protocol. None: the packet is not ours, and goes on as if we were not there.
//  2. [Frontend.Sources] that do not contain the source drop it.
//  3. The pool is chosen: [Frontend.Local] if there is one and the packet is external traffic, else [Frontend.Pool].
//     External is what comes neither from this node nor from [Options.ClusterCIDRs].
//  4. An empty pool ends it, by the pool's [Action]. Otherwise a target is chosen: the one that [Frontend.Affinity]
//     remembers for this client, or one at random, each as likely as any other.
//  5. The packet is sent there (DNAT); the port stays when the target has none.
//  6. Its source becomes this node's (masquerade) if [Frontend.Masquerade] says so, and always when a target's own
//     packet comes back to itself (hairpin), which it could not answer otherwise.
//
// A connection that a source of [Egress] opens, to what is not in [Options.ClusterCIDRs] and was not redirected,
// leaves with the address of that Egress.
//
// # What a writer owns
//
// Everything it writes carries [Options.Owner] in its name, so two backends live on one node, and nothing else is
// ever touched. Names and comments come from [Service.Name], which a writer shortens and escapes: it is not trusted.
package dataplane
