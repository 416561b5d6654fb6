// SPDX-License-Identifier: Apache-2.0

// Package allip is the all-ip proxy: every packet to an external IP or load-balancer IP of a service, whatever its
// protocol and port, goes to a pod of the service on this node.
//
// The data's way: changes of services come from client/localsink/changes; render makes each a dataplane.Service with
// all its addresses; the guard takes away the addresses that must not be served; claims decide who has an address that
// two services want; the syncer has a writer program the rest.
package allip
