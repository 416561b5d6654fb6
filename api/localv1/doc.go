// SPDX-License-Identifier: Apache-2.0

// Package localv1 is the protocol between kpng and what proxies a node: services, and for each the endpoints that the
// node may use.
//
// api.proto is the definition and api.pb.go and api_grpc.pb.go are generated from it (make generate). The other files
// add small helpers to the messages. They import nothing of Kubernetes, so that a backend stays a small program.
package localv1
