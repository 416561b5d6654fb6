// SPDX-License-Identifier: Apache-2.0

// Package nat is a complete service proxy: it serves the cluster IPs, node ports, external IPs and load-balancer IPs of
// Services with the rules of kube-proxy, and may take its place.
//
// What a service becomes is computed by render and adapt, which are pure; package proxy does the rest. Beside the kernel's
// rules there are the health checks of load balancers, see health.
package nat
