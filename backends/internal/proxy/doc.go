// SPDX-License-Identifier: Apache-2.0

// Package proxy is what the backends that program the kernel have in common: the way from changes of Kubernetes Services
// to changes of what the kernel is to do. A backend brings its [Rules], which are pure, and is a [Cmd].
//
// The data's way: changes of services come from client/localsink/changes; the backend renders each as a
// dataplane.Service with all that it asks for; the guard takes away the addresses that must not be served; claims decide
// who has an address that two services want; a driver has a writer program the rest.
package proxy
