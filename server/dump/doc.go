// SPDX-License-Identifier: Apache-2.0

// Package dump writes the global state as text for people, and reads it back.
//
// A dump is one YAML document, with the field names of the .proto files:
//
//	apiVersion: kpng.sigs.k8s.io/v1
//	kind: GlobalState
//	nodes:      # globalv1.Node, by name
//	- Name: node-1
//	services:   # globalv1.ServiceInfo, by namespace and name
//	- Service: {Namespace: default, Name: web, …}
//	slices:     # by service and name; each with its globalv1.EndpointInfo
//	- Namespace: default
//	  Name: web-x7k2p
//	  Service: web
//	  Endpoints: […]
//
// What follows from the rest is left out: hashes, and the names of slice and service in each endpoint.
package dump

// What a dump says of itself.
const (
	APIVersion = "kpng.sigs.k8s.io/v1"
	Kind       = "GlobalState"
)
