// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// An endpoint of the table below is written as "NAME@NODE CONDITION HINT...":
//
//	CONDITION  ready, notready, terminating (serves while it terminates), dying (terminates, does not serve)
//	HINT       zone=Z (hints.forZones), node=N (hints.forNodes); may be repeated
//
// (an endpoint whose name ends in 6 has an IPv6 address, the others have IPv4 ones)
// and what the node sees as "NAME:SCOPES", with the letters l(ocal), i(nternal), e(xternal), c(luster), t(erminating).
// What it sees with AllEndpoints is written under all where it is not the same.
//
// All is seen from node n1 in zone z1, unless the case says otherwise. Sources of the rules:
// https://kubernetes.io/docs/reference/networking/virtual-ips/ (traffic policies, terminating endpoints),
// https://kubernetes.io/docs/concepts/services-networking/topology-aware-routing/ and
// https://kubernetes.io/docs/concepts/services-networking/service/#traffic-distribution (hints),
// KEP-2086 (internalTrafficPolicy), KEP-1669 (terminating), KEP-2433 (zone hints), KEP-3015 (node hints).
var table = []struct {
	name      string
	service   func(*globalv1.ServiceInfo)
	node      *Node
	endpoints []string
	want      string
	all       string
}{
	// Which endpoints are usable.
	{
		name:      "ready endpoints, local and not",
		endpoints: []string{"a@n1 ready", "b@n2 ready", "c@ ready"},
		want:      "a:lie b:ie c:ie",
	},
	{
		name:      "not-ready endpoints are not usable",
		endpoints: []string{"a@n1 notready", "b@n2 ready", "c@n2 dying"},
		want:      "b:ie",
	},
	{
		name:      "no endpoint at all",
		endpoints: nil,
		want:      "",
	},
	{
		name:      "none ready, none terminating",
		endpoints: []string{"a@n1 notready", "b@n2 dying"},
		want:      "",
	},
	{
		name:      "terminating endpoints are not used while there is a ready one anywhere",
		endpoints: []string{"a@n1 terminating", "b@n2 ready"},
		want:      "b:ie",
		all:       "a:lt b:ie",
	},
	{
		name:      "no ready endpoint left: those that serve while they terminate",
		endpoints: []string{"a@n1 terminating", "b@n2 terminating", "c@n2 notready", "d@n1 dying"},
		want:      "a:lie b:ie",
		all:       "a:liet b:iet",
	},
	{
		name:      "publishNotReadyAddresses: all are as good as ready",
		service:   publishNotReady,
		endpoints: []string{"a@n1 notready", "b@n2 ready", "c@n2 dying"},
		want:      "a:lie b:ie c:ie",
		all:       "a:lie b:ie c:iet",
	},

	{
		name:      "each IP family by itself: terminating endpoints where no ready one is left",
		endpoints: []string{"a@n1 ready", "b@n2 terminating", "c6@n1 terminating", "d6@n2 terminating"},
		want:      "a:lie c6:lie d6:ie",
		all:       "a:lie b:t c6:liet d6:iet",
	},
	{
		name:      "each IP family by itself, local ones too",
		service:   bothLocal,
		endpoints: []string{"a@n1 terminating", "b@n2 ready", "c6@n1 ready", "d6@n1 terminating"},
		want:      "a:lie c6:lie",
		all:       "a:liet b:c c6:liec d6:lt",
	},

	// internalTrafficPolicy and externalTrafficPolicy.
	{
		name:      "internal Local: remote endpoints for external traffic only",
		service:   internalLocal,
		endpoints: []string{"a@n1 ready", "b@n2 ready"},
		want:      "a:lie b:e",
	},
	{
		name:      "external Local: remote endpoints for internal traffic only",
		service:   externalLocal,
		endpoints: []string{"a@n1 ready", "b@n2 ready"},
		want:      "a:lie b:i",
	},
	{
		name:      "both Local: no remote endpoints",
		service:   bothLocal,
		endpoints: []string{"a@n1 ready", "b@n2 ready", "c@ ready"},
		want:      "a:lie",
		all:       "a:liec b:c c:c",
	},
	{
		name:      "both Local, none on the node",
		service:   bothLocal,
		endpoints: []string{"b@n2 ready"},
		want:      "",
		all:       "b:c",
	},
	{
		name:      "external Local: the terminating one of the node for external, the ready one elsewhere for internal traffic",
		service:   externalLocal,
		endpoints: []string{"a@n1 terminating", "b@n2 ready"},
		want:      "a:le b:i",
		all:       "a:let b:i",
	},
	{
		name:      "external Local: a terminating one is not used beside a ready one on the node",
		service:   externalLocal,
		endpoints: []string{"a@n1 terminating", "b@n1 ready"},
		want:      "b:lie",
		all:       "a:lt b:lie",
	},
	{
		name:      "both Local, no ready endpoint left anywhere",
		service:   bothLocal,
		endpoints: []string{"a@n1 terminating", "b@n2 terminating", "c@n2 dying"},
		want:      "a:lie",
		all:       "a:liect b:ct",
	},
	{
		name:      "both Local, a terminating endpoint elsewhere beside a ready one",
		service:   bothLocal,
		endpoints: []string{"a@n2 terminating", "b@n3 ready"},
		want:      "",
		all:       "a:t b:c",
	},
	{
		name:      "internal Local: terminating endpoints elsewhere",
		service:   internalLocal,
		endpoints: []string{"a@n1 ready", "b@n2 terminating", "c@n2 dying"},
		want:      "a:lie",
		all:       "a:lie b:t",
	},
	{
		name:      "a node without a name has nothing local",
		service:   bothLocal,
		node:      &Node{},
		endpoints: []string{"a@ ready"},
		want:      "",
		all:       "a:c",
	},

	// Zone hints.
	{
		name:      "zone hints: those of the node's zone",
		endpoints: []string{"a@n1 ready zone=z1", "b@n2 ready zone=z2", "c@n3 ready zone=z2 zone=z1"},
		want:      "a:lie c:ie",
	},
	{
		name:      "zone hints: a local endpoint hinted for another zone is not used",
		endpoints: []string{"a@n1 ready zone=z2", "b@n2 ready zone=z1"},
		want:      "b:ie",
	},
	{
		name:      "zone hints: one missing on a ready endpoint, so none count",
		endpoints: []string{"a@n1 ready zone=z1", "b@n2 ready zone=z2", "c@n3 ready"},
		want:      "a:lie b:ie c:ie",
	},
	{
		name:      "zone hints: one missing on an endpoint that is not ready does not matter",
		endpoints: []string{"a@n1 ready zone=z1", "b@n2 ready zone=z2", "c@n3 notready", "d@n3 terminating"},
		want:      "a:lie",
		all:       "a:lie d:t",
	},
	{
		name:      "zone hints: the node's zone is not known, so none count",
		node:      &Node{Name: "n1"},
		endpoints: []string{"a@n1 ready zone=z1", "b@n2 ready zone=z2"},
		want:      "a:lie b:ie",
	},
	{
		name:      "zone hints: no endpoint for the node's zone, so none count",
		node:      &Node{Name: "n1", Zone: "z3"},
		endpoints: []string{"a@n1 ready zone=z1", "b@n2 ready zone=z2"},
		want:      "a:lie b:ie",
	},
	{
		name:      "zone hints: the only endpoint for the zone is not ready, so none count",
		endpoints: []string{"a@n1 notready zone=z1", "b@n2 ready zone=z2"},
		want:      "b:ie",
	},
	{
		name:      "zone hints do not choose among terminating endpoints",
		endpoints: []string{"a@n1 terminating zone=z1", "b@n2 terminating zone=z2"},
		want:      "a:lie b:ie",
		all:       "a:liet b:iet",
	},
	{
		name:      "publishNotReadyAddresses: a terminating one that is not hinted for the node's zone",
		service:   publishNotReady,
		endpoints: []string{"a@n1 ready zone=z1", "b@n2 terminating zone=z2", "c@n2 dying zone=z2"},
		want:      "a:lie",
		all:       "a:lie b:t",
	},
	{
		name:      "zone hints never apply to policy Local",
		service:   externalLocal,
		endpoints: []string{"a@n1 ready zone=z2", "b@n2 ready zone=z1", "c@n2 ready zone=z2"},
		want:      "a:le b:i",
	},
	{
		name:      "zone hints with both policies Local",
		service:   bothLocal,
		endpoints: []string{"a@n1 ready zone=z2", "b@n2 ready zone=z1"},
		want:      "a:lie",
		all:       "a:lie b:c",
	},

	// Node hints.
	{
		name:      "node hints: those for the node",
		endpoints: []string{"a@n1 ready node=n1", "b@n2 ready node=n2", "c@n3 ready node=n3 node=n1"},
		want:      "a:lie c:ie",
	},
	{
		name:      "node hints come before zone hints",
		endpoints: []string{"a@n1 ready node=n1 zone=z1", "b@n2 ready node=n2 zone=z1"},
		want:      "a:lie",
	},
	{
		name:      "node hints: none for the node, so zone hints",
		endpoints: []string{"a@n3 ready node=n3 zone=z2", "b@n2 ready node=n2 zone=z1"},
		want:      "b:ie",
	},
	{
		name:      "node hints: one missing, so zone hints",
		endpoints: []string{"a@n1 ready zone=z2", "b@n2 ready node=n1 zone=z1"},
		want:      "b:ie",
	},
	{
		name:      "node hints: none for the node, no zone hints: none count",
		endpoints: []string{"a@n3 ready node=n3", "b@n2 ready node=n2"},
		want:      "a:ie b:ie",
	},
	{
		name:      "node hints do not need the node's zone",
		node:      &Node{Name: "n1"},
		endpoints: []string{"a@n1 ready node=n1", "b@n2 ready node=n2"},
		want:      "a:lie",
	},
	{
		name:      "node hints never apply to policy Local",
		service:   internalLocal,
		endpoints: []string{"a@n1 ready node=n2", "b@n2 ready node=n1"},
		want:      "a:li b:e",
	},
	{
		name:      "hints of each IP family by themselves: one without a hint in the other",
		endpoints: []string{"a@n1 ready zone=z1", "b@n2 ready zone=z2", "c6@n1 ready", "d6@n2 ready zone=z2"},
		want:      "a:lie c6:lie d6:ie",
	},
	{
		name:      "hints of each IP family by themselves: zones and nodes",
		endpoints: []string{"a@n1 ready zone=z1 node=n1", "b@n2 ready zone=z1 node=n2", "c6@n1 ready zone=z1", "d6@n2 ready zone=z1"},
		want:      "a:lie c6:lie d6:ie",
	},
}

func publishNotReady(i *globalv1.ServiceInfo) { i.PublishNotReadyAddresses = true }
func internalLocal(i *globalv1.ServiceInfo)   { i.Service.InternalTrafficToLocal = true }
func externalLocal(i *globalv1.ServiceInfo)   { i.Service.ExternalTrafficToLocal = true }
func bothLocal(i *globalv1.ServiceInfo)       { internalLocal(i); externalLocal(i) }

func TestEndpoints(t *testing.T) {
	for _, tt := range table {
		t.Run(tt.name, func(t *testing.T) {
			node := Node{Name: "n1", Zone: "z1"}
			if tt.node != nil {
				node = *tt.node
			}
			svc := held(tt.service, tt.endpoints)
			require.Equal(t, tt.want, describe(t, Endpoints(nil, svc, Query{Node: node})))
			require.Equal(t, cmp.Or(tt.all, tt.want), describe(t, Endpoints(nil, svc, Query{Node: node, AllEndpoints: true})))
		})
	}
}

// held returns a service as a store holds it. The endpoint named x has the host name x and an address of its own,
// ascending, so that the order of the keys is that of the table.
func held(change func(*globalv1.ServiceInfo), endpoints []string) *store.Service {
	info := &globalv1.ServiceInfo{Service: &localv1.Service{Namespace: "ns", Name: "svc"}}
	if change != nil {
		change(info)
	}
	slice := &store.Slice{Namespace: "ns", Name: "slice", Service: "svc"}
	for i, text := range endpoints {
		slice.Endpoints = append(slice.Endpoints, parse(i, text))
	}
	s := store.New()
	s.Update(func(tx *store.Tx) { tx.SetService(info); tx.SetSlice(slice) })
	return s.Snapshot().Service("ns/svc")
}

func parse(i int, text string) *globalv1.EndpointInfo {
	fields := strings.Fields(text)
	name, node, _ := strings.Cut(fields[0], "@")
	info := &globalv1.EndpointInfo{
		Endpoint: &localv1.Endpoint{Hostname: name, IPs: localv1.NewIPSet(address(name, i))},
		Topology: &globalv1.TopologyInfo{Node: node},
		Conditions: map[string]*globalv1.EndpointConditions{
			"ready":       {Ready: true, Serving: true},
			"notready":    {},
			"terminating": {Serving: true, Terminating: true},
			"dying":       {Terminating: true},
		}[fields[1]],
	}
	for _, hint := range fields[2:] {
		if info.Hints == nil {
			info.Hints = &globalv1.TopologyHints{}
		}
		switch kind, value, _ := strings.Cut(hint, "="); kind {
		case "zone":
			info.Hints.Zones = append(info.Hints.Zones, value)
		case "node":
			info.Hints.Nodes = append(info.Hints.Nodes, value)
		}
	}
	return info
}

// address: those of IPv6 come after those of IPv4, as the names are to.
func address(name string, i int) string {
	if strings.HasSuffix(name, "6") {
		return fmt.Sprintf("fd00::%d", i)
	}
	return fmt.Sprintf("10.0.0.%d", i)
}

// describe decodes what a node would be sent.
func describe(t *testing.T, eps []Endpoint) string {
	var out []string
	for _, ep := range eps {
		var got localv1.Endpoint
		require.NoError(t, proto.Unmarshal([]byte(ep.Wire()+ep.Scope.Suffix()), &got))
		letters := ""
		if got.Local {
			letters += "l"
		}
		if got.Scopes.GetInternal() {
			letters += "i"
		}
		if got.Scopes.GetExternal() {
			letters += "e"
		}
		if got.Scopes.GetCluster() {
			letters += "c"
		}
		if got.Terminating {
			letters += "t"
		}
		out = append(out, got.Hostname+":"+letters)
	}
	return strings.Join(out, " ")
}

func TestServiceThatDoesNotExist(t *testing.T) {
	require.Empty(t, Endpoints(nil, nil, Query{Node: Node{Name: "n1"}, AllEndpoints: true}))
}

func TestAt(t *testing.T) {
	s := store.New()
	s.Update(func(tx *store.Tx) {
		tx.SetNode(&globalv1.Node{Name: "n1", Topology: &globalv1.TopologyInfo{Node: "n1", Zone: "z1"}})
	})
	require.Equal(t, Node{Name: "n1", Zone: "z1"}, At(s.Snapshot(), "n1"))
	require.Equal(t, Node{Name: "n2"}, At(s.Snapshot(), "n2"), "a node that is not known has only its name")
}

// TestSuffix checks the bytes that this package writes by hand against the generated code.
func TestSuffix(t *testing.T) {
	for scope := range Scope(scopes) {
		var got localv1.Endpoint
		require.NoError(t, proto.Unmarshal([]byte(scope.Suffix()), &got))
		want := &localv1.Endpoint{
			Local: scope&Local != 0,
			Scopes: &localv1.EndpointScopes{
				Internal: scope&Internal != 0, External: scope&External != 0, Cluster: scope&Cluster != 0,
			},
			Terminating: scope&Terminating != 0,
		}
		require.Empty(t, gocmp.Diff(want, &got, protocmp.Transform()))
	}
}

func TestDiff(t *testing.T) {
	seen := func(endpoints ...string) []Endpoint {
		return Endpoints(nil, held(externalLocal, endpoints), Query{Node: Node{Name: "n1"}, AllEndpoints: true})
	}
	for _, tt := range []struct {
		name     string
		old, new []Endpoint
		want     string
	}{
		{"nothing", nil, nil, ""},
		{"equal, other objects", seen("a@n2 ready", "b@n2 ready"), seen("a@n2 ready", "b@n2 ready"), ""},
		{"came", seen("a@n2 ready"), seen("a@n2 ready", "b@n2 ready"), "set b"},
		{"went", seen("a@n2 ready", "b@n2 ready"), seen("a@n2 ready"), "remove 10.0.0.1"},
		{"all went", seen("a@n2 ready", "b@n2 ready"), nil, "remove 10.0.0.0, remove 10.0.0.1"},
		{"in the middle", seen("a@n2 ready", "b@n2 notready", "c@n2 ready"), seen("a@n2 notready", "b@n2 ready", "c@n2 ready"), "remove 10.0.0.0, set b"},
		{"moved to the node", seen("a@n2 ready"), seen("a@n1 ready"), "set a"},
		{"moved between other nodes", seen("a@n2 ready"), seen("a@n3 ready"), ""},
		{"other host name", seen("a@n2 ready"), seen("b@n2 ready"), "set b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			Diff(tt.old, tt.new,
				func(key string) { ip, _, _ := strings.Cut(key, "-"); got = append(got, "remove "+ip) },
				func(ep Endpoint) {
					name, _, _ := strings.Cut(describe(t, []Endpoint{ep}), ":")
					got = append(got, "set "+name)
				})
			require.Equal(t, tt.want, strings.Join(got, ", "))
		})
	}
}

// BenchmarkEndpoints: one service of ten endpoints seen from one node.
func BenchmarkEndpoints(b *testing.B) {
	var all []string
	for i := range 10 {
		all = append(all, fmt.Sprintf("e%d@n%d ready zone=z%d", i, i%3, i%2))
	}
	svc := held(nil, all)
	query := Query{Node: Node{Name: "n1", Zone: "z1"}}
	var buf []Endpoint
	b.ReportAllocs()
	for b.Loop() {
		buf = Endpoints(buf[:0], svc, query)
	}
}
