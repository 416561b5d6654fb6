// SPDX-License-Identifier: Apache-2.0

package localtest

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
)

// Reset is a Reset op.
func Reset() *localv1.OpItem {
	return &localv1.OpItem{Op: &localv1.OpItem_Reset_{Reset_: &localv1.EmptyOp{}}}
}

// Sync is a Sync op.
func Sync() *localv1.OpItem {
	return &localv1.OpItem{Op: &localv1.OpItem_Sync{Sync: &localv1.EmptyOp{}}}
}

// Batch is several ops in one.
func Batch(ops ...*localv1.OpItem) *localv1.OpItem {
	return &localv1.OpItem{Op: &localv1.OpItem_Batch{Batch: &localv1.OpBatch{Ops: ops}}}
}

// Set is a Set op of a service or an endpoint, as its path says.
func Set(path string, raw []byte) *localv1.OpItem {
	return &localv1.OpItem{Op: &localv1.OpItem_Set{Set: &localv1.Value{Ref: ref(path), Bytes: raw}}}
}

// Delete is a Delete op of a service or an endpoint, as its path says.
func Delete(path string) *localv1.OpItem {
	return &localv1.OpItem{Op: &localv1.OpItem_Delete{Delete: ref(path)}}
}

// SetService is a Set op of a service.
func SetService(svc *localv1.Service) *localv1.OpItem {
	return Set(svc.NamespacedName(), mustMarshal(svc))
}

// SetEndpoint is a Set op of an endpoint of namespace/name.
func SetEndpoint(service, key string, ep *localv1.Endpoint) *localv1.OpItem {
	return Set(service+"/"+key, mustMarshal(ep))
}

// Service returns a service of that namespace/name with one cluster IP and one port.
func Service(path, ip string, port int32) *localv1.Service {
	namespace, name, _ := strings.Cut(path, "/")
	return &localv1.Service{
		Namespace: namespace, Name: name, Type: "ClusterIP",
		IPs:   &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet(ip)},
		Ports: []*localv1.PortMapping{{Protocol: localv1.Protocol_TCP, Port: port, TargetPort: port + 8000}},
	}
}

// Endpoint returns an endpoint with these addresses, for any kind of traffic.
func Endpoint(ips ...string) *localv1.Endpoint {
	return &localv1.Endpoint{IPs: localv1.NewIPSet(ips...), Scopes: &localv1.EndpointScopes{Internal: true, External: true}}
}

// Garbage is what a server must not send: each op is to be skipped.
func Garbage() []*localv1.OpItem {
	value := func(ref *localv1.Ref) *localv1.OpItem {
		return &localv1.OpItem{Op: &localv1.OpItem_Set{Set: &localv1.Value{Ref: ref}}}
	}
	remove := func(ref *localv1.Ref) *localv1.OpItem {
		return &localv1.OpItem{Op: &localv1.OpItem_Delete{Delete: ref}}
	}
	ops := []*localv1.OpItem{
		nil, {},
		{Op: &localv1.OpItem_Set{}}, {Op: &localv1.OpItem_Delete{}}, {Op: &localv1.OpItem_Batch{}},
		value(nil), value(&localv1.Ref{}), value(&localv1.Ref{Set: 99, Path: "ns/a"}), value(&localv1.Ref{Set: localv1.Set_GlobalNodeInfos, Path: "n"}),
		remove(&localv1.Ref{}), remove(&localv1.Ref{Set: 99, Path: "ns/a"}),
		Set("ns/a", []byte{0xff}), Set("ns/a/1", []byte("garbage")),
	}
	for _, path := range []string{"", "/", "a", "a/", "/a", "//", "a//b", "a/b/", "/b/c", "a/b/c/d"} {
		for _, set := range []localv1.Set{localv1.Set_ServicesSet, localv1.Set_EndpointsSet} {
			ops = append(ops, value(&localv1.Ref{Set: set, Path: path}), remove(&localv1.Ref{Set: set, Path: path}))
		}
	}
	return append(ops, value(&localv1.Ref{Set: localv1.Set_EndpointsSet, Path: "ns/a"}), value(&localv1.Ref{Set: localv1.Set_ServicesSet, Path: "ns/a/1"}))
}

func ref(path string) *localv1.Ref {
	if strings.Count(path, "/") == 1 {
		return &localv1.Ref{Set: localv1.Set_ServicesSet, Path: path}
	}
	return &localv1.Ref{Set: localv1.Set_EndpointsSet, Path: path}
}

func mustMarshal(m proto.Message) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return raw
}
