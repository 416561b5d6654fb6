// SPDX-License-Identifier: Apache-2.0

// Package allip is the all-ip proxy: every packet to an external IP or load-balancer IP of a service, whatever its
// protocol and port, goes to a pod of the service on this node.
//
// What a service becomes is computed by render and finish, which are pure; package proxy does the rest.
package allip
