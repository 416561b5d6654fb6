// SPDX-License-Identifier: Apache-2.0

package view

import "google.golang.org/protobuf/encoding/protowire"

// Field numbers of localv1.Endpoint and localv1.EndpointScopes, see api/localv1/api.proto.
const (
	endpointLocal       = 3
	endpointScopes      = 5
	endpointTerminating = 6

	scopesInternal = 1
	scopesExternal = 2
	scopesCluster  = 3
)

// Suffix is the part of the marshalled localv1.Endpoint that depends on who looks: Local, Scopes and Terminating. The whole
// message is the endpoint's Wire followed by it (the order of fields does not matter in protobuf).
func (s Scope) Suffix() string { return suffixes[s] }

var suffixes = func() (all [scopes]string) {
	for s := range Scope(scopes) {
		all[s] = string(s.suffix())
	}
	return all
}()

func (s Scope) suffix() []byte {
	flag := func(b []byte, field protowire.Number, on Scope) []byte {
		if s&on == 0 {
			return b
		}
		return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), 1)
	}
	b := flag(nil, endpointLocal, Local)
	inner := flag(flag(flag(nil, scopesInternal, Internal), scopesExternal, External), scopesCluster, Cluster)
	b = protowire.AppendTag(b, endpointScopes, protowire.BytesType)
	b = protowire.AppendBytes(b, inner)
	return flag(b, endpointTerminating, Terminating)
}
