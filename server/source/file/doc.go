// SPDX-License-Identifier: Apache-2.0

// Package file fills the store from files: ordinary Kubernetes manifests, or dumps that "to-file" wrote.
//
// Each time something happens to the input, all of it is read anew:
//
//  1. documents: a file becomes YAML or JSON documents, each knowing its line;
//  2. decode: a document becomes objects, strict about types, lenient about fields that are not known;
//  3. collect: objects become the wanted state, by the same translation and the same selection as from an API server;
//  4. the difference to the state before goes to the store in one commit.
//
// When any of it cannot be read, the last good state stays, whole, and [Source.Ready] says so.
//
// Selection is as with an API server, but for one thing: there is no EndpointSlice controller that would copy the
// label of a Service to its slices, so with a proxy name the slices of a selected Service are found by the name of
// the Service, whether it has a selector or not.
package file
