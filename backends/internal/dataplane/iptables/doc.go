// SPDX-License-Identifier: Apache-2.0

// Package iptables is the dataplane.Writer that writes rules with iptables and ip6tables, of either flavor: for
// people who want to see with `iptables -t nat -S` what goes where.
//
// A packet goes through the chains that base.go lists and then those of compile.go. What a Service has is compiled to
// blocks (block.go), and a change of a Service to the difference of two blocks, which iptables-restore writes in one
// transaction a table. The kernel looks through a chain of frontends rule by rule, so the time that a new connection
// takes grows with the number of frontends, and with the legacy flavor so does that of every change: with thousands of
// Services the nftables writer is the better one.
//
// Affinity is the kernel's match "recent", which remembers no more clients for each target than the parameter
// ip_list_tot of the module xt_recent says, 100 unless it was loaded with another one. Of more, those that were not seen for
// the longest time are forgotten.
package iptables
