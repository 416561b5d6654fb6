// SPDX-License-Identifier: Apache-2.0

// Package kube fills the store from a Kubernetes API server.
//
// How an object gets from there to here:
//
//  1. A [feed] lists and watches one selection of one resource: the Services of this proxy, the EndpointSlices made
//     for them, all Nodes (metadata only), and the hand-written slices of each Service without a selector. What is
//     not served is not asked for.
//  2. client-go's Reflector does the protocol (streaming lists, bookmarks, 410 Gone, relists) and calls the feed for
//     each object. The feed translates it at once and lets go of it: there is no informer cache, so the cluster is
//     held once, encoded, in the store.
//  3. The [mirror] drops what changes nothing, remembers which feeds know a slice, and gathers what is left until a
//     moment of quiet. Then it is one commit.
//  4. The [gate] opens when every feed has listed and watches: the first commit, also when it is empty.
//
// When the API server cannot be reached later on, the state stays as it is and [Source.Ready] says since when and why.
// All that is needed of the API server is list and watch on services, endpointslices and nodes.
package kube
