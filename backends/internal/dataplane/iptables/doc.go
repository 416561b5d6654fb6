// SPDX-License-Identifier: Apache-2.0

// Package iptables is the dataplane.Writer that writes rules with iptables and ip6tables, of either flavor: for
// people who want to see with `iptables -t nat -S` what goes where.
//
// A packet goes through the chains that base.go lists and then those of compile.go. What a Service has is compiled to
// blocks (block.go), and a change of a Service to the difference of two blocks, which iptables-restore writes in one
// transaction a table. The kernel looks through a chain of frontends rule by rule, so the time that a new connection
// takes grows with the number of frontends, and with the legacy flavor so does that of every change. The programs of the
// flavor nft take a time that grows with the square of the number of chains, to list as well as to write. Seconds of
// processor time, by Services of ten endpoints (measured once; kernel 6.18, iptables 1.8.9, one of two shared cores; the
// benchmarks here give the time on the clock):
//
//	                          100  1,000  5,000
//	nft     all, from nothing 0.13    2.1     43
//	        one change       0.006   0.03   0.15
//	        listing           0.07    1.6     52
//	legacy  all, from nothing 0.09    0.4    3.2
//	        one change       0.010   0.09    0.7
//	        listing           0.02    0.1    1.1
//
// So nftables is the better writer from about 1,000 Services on. A listing is what Replace begins with, and what Check does
// when somebody else has changed rules.
//
// Our hooks in the kernel's chains stand before those of kube-proxy, which would else take what both serve, and in the
// order of Options.Priority among owners. Check notices when that is not so any more. Rules of others are never moved.
//
// Affinity is the kernel's match "recent", which remembers no more clients for each target than the parameter
// ip_list_tot of the module xt_recent says, 100 unless it was loaded with another one. Of more, those that were not seen for
// the longest time are forgotten.
package iptables
