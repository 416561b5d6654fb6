// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
)

func service(name string, ports ...int32) *globalv1.ServiceInfo {
	svc := &localv1.Service{Namespace: "ns", Name: name, Type: "ClusterIP", IPs: &localv1.ServiceIPs{ClusterIPs: &localv1.IPSet{}}}
	for _, port := range ports {
		svc.Ports = append(svc.Ports, &localv1.PortMapping{Protocol: localv1.Protocol_TCP, Port: port})
	}
	return &globalv1.ServiceInfo{Service: svc}
}

func endpoint(ip string, more ...func(*globalv1.EndpointInfo)) *globalv1.EndpointInfo {
	info := &globalv1.EndpointInfo{
		Endpoint:   &localv1.Endpoint{IPs: &localv1.IPSet{V4: []string{ip}}},
		Conditions: &globalv1.EndpointConditions{Ready: true, Serving: true},
		Topology:   &globalv1.TopologyInfo{Node: "n1"},
	}
	for _, change := range more {
		change(info)
	}
	return info
}

func notReady(info *globalv1.EndpointInfo) { info.Conditions = &globalv1.EndpointConditions{} }

func ports(list ...int32) func(*globalv1.EndpointInfo) {
	return func(info *globalv1.EndpointInfo) {
		for _, port := range list {
			info.Endpoint.PortOverrides = append(info.Endpoint.PortOverrides, &localv1.PortName{Port: port})
		}
	}
}

func sliceOf(svc, name string, eps ...*globalv1.EndpointInfo) *Slice {
	for _, ep := range eps {
		ep.Namespace, ep.ServiceName, ep.SourceName = "ns", svc, name
	}
	return &Slice{Namespace: "ns", Name: name, Service: svc, Endpoints: eps}
}

// ips are the first addresses of a service's endpoints.
func ips(svc *Service) (out []string) {
	for _, ep := range svc.Endpoints() {
		out = append(out, ep.info("", "").Endpoint.IPs.First())
	}
	return out
}

func TestEqualValuesCommitNothing(t *testing.T) {
	s := New()
	set := func(tx *Tx) {
		tx.SetService(service("a", 80))
		tx.SetSlice(sliceOf("a", "a-1", endpoint("10.0.0.1"), endpoint("10.0.0.2")))
		tx.SetNode(&globalv1.Node{Name: "n1", Labels: map[string]string{"a": "1", "b": "2"}})
		tx.SetSynced()
	}
	s.Update(set)
	first := s.Snapshot()
	require.Equal(t, uint64(1), first.Revision())

	_, outdated := s.Watch()
	s.Update(set)
	s.Update(func(tx *Tx) { tx.SetSlice(sliceOf("a", "a-1", endpoint("10.0.0.2"), endpoint("10.0.0.1"))) }) // in another order
	s.Update(func(tx *Tx) { tx.DeleteService("ns", "none"); tx.DeleteSlice("ns", "none"); tx.DeleteNode("none") })
	require.Same(t, first, s.Snapshot())
	select {
	case <-outdated:
		t.Fatal("watchers were woken for nothing")
	default:
	}
}

func TestUnchangedEndpointsStayTheSameObjects(t *testing.T) {
	s := New()
	s.Update(func(tx *Tx) { tx.SetSlice(sliceOf("a", "a-1", endpoint("10.0.0.1"), endpoint("10.0.0.2"))) })
	before := s.Snapshot().Service("ns/a").Endpoints()
	s.Update(func(tx *Tx) { tx.SetSlice(sliceOf("a", "a-1", endpoint("10.0.0.1"), endpoint("10.0.0.2", notReady))) })
	after := s.Snapshot().Service("ns/a").Endpoints()
	require.Same(t, before[0], after[0])
	require.NotSame(t, before[1], after[1])
	require.Equal(t, before[1].Key(), after[1].Key(), "a change of conditions keeps the key")
	require.True(t, before[1].Ready(), "the older snapshot is as it was")
}

func TestSlices(t *testing.T) {
	update := func(fns ...func(*Tx)) *Store {
		s := New()
		for _, fn := range fns {
			s.Update(fn)
		}
		return s
	}
	setA := func(tx *Tx) { tx.SetSlice(sliceOf("a", "s", endpoint("10.0.0.1"))) }

	t.Run("before the service", func(t *testing.T) {
		s := update(setA)
		require.False(t, s.Snapshot().Service("ns/a").Exists())
		s.Update(func(tx *Tx) { tx.SetService(service("a")) })
		require.True(t, s.Snapshot().Service("ns/a").Exists())
		require.Equal(t, []string{"10.0.0.1"}, ips(s.Snapshot().Service("ns/a")))
	})
	t.Run("stay when the service goes", func(t *testing.T) {
		s := update(setA, func(tx *Tx) { tx.SetService(service("a")) }, func(tx *Tx) { tx.DeleteService("ns", "a") })
		require.False(t, s.Snapshot().Service("ns/a").Exists())
		require.Equal(t, []string{"10.0.0.1"}, ips(s.Snapshot().Service("ns/a")))
		s.Update(func(tx *Tx) { tx.DeleteSlice("ns", "s") })
		require.Nil(t, s.Snapshot().Service("ns/a"))
		require.Equal(t, Size{}, s.Snapshot().Size())
	})
	t.Run("move to another service", func(t *testing.T) {
		s := update(setA, func(tx *Tx) { tx.SetSlice(sliceOf("b", "s", endpoint("10.0.0.1"))) })
		require.Nil(t, s.Snapshot().Service("ns/a"))
		require.Equal(t, []string{"10.0.0.1"}, ips(s.Snapshot().Service("ns/b")))
	})
	t.Run("lose their service", func(t *testing.T) {
		s := update(setA, func(tx *Tx) { tx.SetSlice(sliceOf("", "s", endpoint("10.0.0.1"))) })
		require.Nil(t, s.Snapshot().Service("ns/a"))
	})
	t.Run("without an address are left out", func(t *testing.T) {
		s := update(func(tx *Tx) { tx.SetSlice(sliceOf("a", "s", &globalv1.EndpointInfo{}, endpoint("10.0.0.1"))) })
		require.Equal(t, []string{"10.0.0.1"}, ips(s.Snapshot().Service("ns/a")))
	})
	t.Run("naming the same endpoint are merged, the ready one wins", func(t *testing.T) {
		s := update(func(tx *Tx) {
			tx.SetSlice(sliceOf("a", "s1", endpoint("10.0.0.1", notReady)))
			tx.SetSlice(sliceOf("a", "s2", endpoint("10.0.0.1"), endpoint("10.0.0.2")))
		})
		eps := s.Snapshot().Service("ns/a").Endpoints()
		require.Len(t, eps, 2)
		require.True(t, eps[0].Ready())
		require.Equal(t, "s2", eps[0].Source())
		s.Update(func(tx *Tx) { tx.DeleteSlice("ns", "s2") })
		require.False(t, s.Snapshot().Service("ns/a").Endpoints()[0].Ready())
	})
	t.Run("naming an address with other ports are not merged", func(t *testing.T) {
		s := update(func(tx *Tx) {
			tx.SetSlice(sliceOf("a", "s1", endpoint("10.0.0.1", ports(80))))
			tx.SetSlice(sliceOf("a", "s2", endpoint("10.0.0.1", ports(81))))
		})
		require.Equal(t, []string{"10.0.0.1", "10.0.0.1"}, ips(s.Snapshot().Service("ns/a")))
	})
}

// TestHeadlessSlices count for headless services only, in whatever order things come.
func TestHeadlessSlices(t *testing.T) {
	s := New()
	set := func(headless bool) {
		svc := service("a", 80)
		svc.Service.IPs.Headless = headless
		s.Update(func(tx *Tx) { tx.SetService(svc) })
	}
	slice := func(name, ip string, headless bool) {
		sl := sliceOf("a", name, endpoint(ip))
		sl.Headless = headless
		s.Update(func(tx *Tx) { tx.SetSlice(sl) })
	}
	held := func() *Service { return s.Snapshot().Service("ns/a") }
	slice("a-1", "10.0.0.1", false)
	slice("a-2", "10.0.0.2", true)
	set(false)
	require.Equal(t, []string{"10.0.0.1"}, ips(held()))
	require.Len(t, held().Slices(), 1, "a dump is to be read as it is used")
	set(true)
	require.Equal(t, []string{"10.0.0.1", "10.0.0.2"}, ips(held()))
	slice("a-1", "10.0.0.1", true)
	set(false)
	require.Empty(t, ips(held()))
	slice("a-2", "10.0.0.2", false)
	require.Equal(t, []string{"10.0.0.2"}, ips(held()), "the label was taken off")
	s.Update(func(tx *Tx) { tx.DeleteService("ns", "a") })
	set(true)
	require.Equal(t, []string{"10.0.0.1", "10.0.0.2"}, ips(held()))
	require.Equal(t, Size{Services: 1, Slices: 2, Endpoints: 2}, s.Snapshot().Size())
}

func TestTextThatIsNotUTF8HarmsNobody(t *testing.T) {
	s := New()
	s.Update(func(tx *Tx) {
		tx.SetService(service("a"))
		bad := service("b")
		bad.Service.Type = "\xff"
		tx.SetService(bad)
		tx.SetSlice(sliceOf("a", "s", endpoint("10.0.0.1"), endpoint("10.0.0.2", func(i *globalv1.EndpointInfo) { i.Endpoint.Hostname = "\xff" })))
	})
	require.True(t, s.Snapshot().Service("ns/a").Exists())
	require.Nil(t, s.Snapshot().Service("ns/b"))
	require.Equal(t, []string{"10.0.0.1"}, ips(s.Snapshot().Service("ns/a")))
}

func TestWaitSynced(t *testing.T) {
	s := New()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := s.WaitSynced(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	go s.Update(func(tx *Tx) { tx.SetSynced() })
	snapshot, err := s.WaitSynced(context.Background())
	require.NoError(t, err)
	require.True(t, snapshot.Synced(), "also when there is nothing in it")
}

// TestEncoding checks the bytes that this package writes by hand against the generated code.
func TestEncoding(t *testing.T) {
	info := endpoint("10.0.0.1", ports(80, 443), func(i *globalv1.EndpointInfo) {
		i.Endpoint.Hostname = "h"
		i.Endpoint.Local, i.Endpoint.Scopes = true, &localv1.EndpointScopes{Internal: true} // not a source's business
		i.PodName = "pod"
		i.Topology.Zone = "z1"
		i.Conditions.Terminating = true
		i.Hints = &globalv1.TopologyHints{Zones: []string{"z2", "z1"}, Nodes: []string{"n1"}}
	})
	svc := service("a", 80)
	svc.PublishNotReadyAddresses = true
	node := &globalv1.Node{Name: "n1", Labels: map[string]string{"k": "v"}, Topology: &globalv1.TopologyInfo{Node: "n1", Zone: "z1"}}
	s := New()
	s.Update(func(tx *Tx) {
		tx.SetService(svc)
		tx.SetSlice(sliceOf("a", "s", info))
		tx.SetNode(node)
	})
	held := s.Snapshot().Service("ns/a")

	var gotService globalv1.ServiceInfo
	require.NoError(t, proto.Unmarshal(held.AppendInfo(nil), &gotService))
	require.NotZero(t, gotService.Hash)
	diff(t, held.Info(), &gotService)
	gotService.Hash = 0
	diff(t, svc, &gotService)

	var gotEndpoint globalv1.EndpointInfo
	require.NoError(t, proto.Unmarshal(held.Endpoints()[0].AppendInfo(nil, held), &gotEndpoint))
	require.NotZero(t, gotEndpoint.Hash)
	gotEndpoint.Hash = 0
	want := proto.CloneOf(info)
	want.Endpoint.Local, want.Endpoint.Scopes = false, nil
	want.Hints.Zones = []string{"z1", "z2"}
	diff(t, want, &gotEndpoint)
	diff(t, []*Slice{{Namespace: "ns", Name: "s", Service: "a", Endpoints: []*globalv1.EndpointInfo{want}}}, held.Slices())

	var gotNode globalv1.NodeInfo
	require.NoError(t, proto.Unmarshal(s.Snapshot().Node("n1").AppendInfo(nil), &gotNode))
	require.NotZero(t, gotNode.Hash)
	diff(t, node, gotNode.Node)
	require.Equal(t, "z1", s.Snapshot().Node("n1").Zone())
}

// TestHashes: a hash changes when anything else does.
func TestHashes(t *testing.T) {
	seen := map[uint64]string{}
	for name, change := range map[string]func(*globalv1.EndpointInfo){
		"as it is":    func(*globalv1.EndpointInfo) {},
		"ready":       notReady,
		"terminating": func(i *globalv1.EndpointInfo) { i.Conditions.Terminating = true },
		"zone hints":  func(i *globalv1.EndpointInfo) { i.Hints = &globalv1.TopologyHints{Zones: []string{"z"}} },
		"node hints":  func(i *globalv1.EndpointInfo) { i.Hints = &globalv1.TopologyHints{Nodes: []string{"z"}} },
		"node":        func(i *globalv1.EndpointInfo) { i.Topology = &globalv1.TopologyInfo{Node: "n2"} },
		"zone":        func(i *globalv1.EndpointInfo) { i.Topology = &globalv1.TopologyInfo{Node: "n1", Zone: "n2"} },
		"pod":         func(i *globalv1.EndpointInfo) { i.PodName = "p" },
		"ports":       ports(1),
	} {
		s := New()
		s.Update(func(tx *Tx) { tx.SetSlice(sliceOf("a", "s", endpoint("10.0.0.1", change))) })
		svc := s.Snapshot().Service("ns/a")
		var got globalv1.EndpointInfo
		require.NoError(t, proto.Unmarshal(svc.Endpoints()[0].AppendInfo(nil, svc), &got))
		require.Empty(t, seen[got.Hash], "%s has the same hash", name)
		seen[got.Hash] = name
	}
}

func diff(t *testing.T, want, got any) {
	t.Helper()
	require.Empty(t, cmp.Diff(want, got, protocmp.Transform()))
}

// TestSinceAgainstModel makes random changes and compares the differences between random pairs of snapshots with
// those of a naive copy of the state. It runs long enough for the history to be cut.
func TestSinceAgainstModel(t *testing.T) {
	type version struct {
		snapshot *Snapshot
		services map[string]*Service
		nodes    map[string]*Node
	}
	random := rand.New(rand.NewPCG(1, 2))
	s := New()
	var versions []version
	steps := 4000
	for step := range steps {
		s.Update(func(tx *Tx) {
			n := 1 + random.IntN(3)
			if step%500 == 499 {
				n = historyKeys + 1 // more than a history holds
			}
			for range n {
				randomChange(random, tx)
			}
		})
		if step%20 != 0 {
			continue
		}
		v := version{snapshot: s.Snapshot(), services: map[string]*Service{}, nodes: map[string]*Node{}}
		for svc := range v.snapshot.Services() {
			if svc.Exists() {
				v.services[svc.Key()] = svc
			}
		}
		for node := range v.snapshot.Nodes() {
			v.nodes[node.Name()] = node
		}
		require.Len(t, v.services, v.snapshot.Size().Services)
		require.Len(t, v.nodes, v.snapshot.Size().Nodes)
		versions = append(versions, v)
		old := versions[random.IntN(len(versions))]
		requireDiff(t, old.services, v.services, collect(v.snapshot.Since(old.snapshot).Services()), (*Service).Key)
		requireDiff(t, old.nodes, v.nodes, collect(v.snapshot.Since(old.snapshot).Nodes()), (*Node).Name)
		requireDiff(t, nil, v.services, collect(v.snapshot.Since(nil).Services()), (*Service).Key)
	}
}

func randomChange(random *rand.Rand, tx *Tx) {
	name := fmt.Sprintf("svc-%d", random.IntN(40))
	switch random.IntN(6) {
	case 0, 1:
		tx.SetService(service(name, random.Int32N(3)))
	case 2:
		tx.DeleteService("ns", name)
	case 3:
		owner := fmt.Sprintf("svc-%d", random.IntN(40))
		tx.SetSlice(sliceOf(owner, "slice-"+name, endpoint(fmt.Sprintf("10.0.0.%d", random.IntN(4)))))
	case 4:
		tx.DeleteSlice("ns", "slice-"+name)
	case 5:
		if random.IntN(2) == 0 {
			tx.SetNode(&globalv1.Node{Name: name, Labels: map[string]string{"v": fmt.Sprint(random.IntN(3))}})
		} else {
			tx.DeleteNode(name)
		}
	}
}

type pair[V any] struct{ old, new V }

func collect[V any](seq func(func(V, V) bool)) (out []pair[V]) {
	seq(func(old, new V) bool { out = append(out, pair[V]{old, new}); return true })
	return out
}

func requireDiff[V comparable](t *testing.T, old, new map[string]V, got []pair[V], name func(V) string) {
	t.Helper()
	var none V
	want := map[string]pair[V]{}
	for key, v := range old {
		if new[key] != v {
			want[key] = pair[V]{v, new[key]}
		}
	}
	for key, v := range new {
		if old[key] != v {
			want[key] = pair[V]{old[key], v}
		}
	}
	keys := slices.Sorted(maps.Keys(want))
	require.Len(t, got, len(keys))
	for i, p := range got {
		key := p.new
		if key == none {
			key = p.old
		}
		require.Equal(t, keys[i], name(key), "in order")
		require.Equal(t, want[keys[i]], p)
	}
}

// TestHistoryIsBounded: an old snapshot keeps no more than two histories alive.
// TestTriggers: what a reader that was told of nothing since the first commit learns of the times, after each commit.
func TestTriggers(t *testing.T) {
	set := func(svc, name string, at int64, ip string) func(*Tx) {
		return func(tx *Tx) {
			slice := sliceOf(svc, name, endpoint(ip))
			if at != 0 {
				slice.TriggeredAt = time.Unix(0, at)
			}
			tx.SetSlice(slice)
		}
	}
	both := func(changes ...func(*Tx)) func(*Tx) {
		return func(tx *Tx) {
			for _, change := range changes {
				change(tx)
			}
		}
	}
	remove := func(name string) func(*Tx) { return func(tx *Tx) { tx.DeleteSlice("ns", name) } }
	type times = map[string]int64
	for _, tt := range []struct {
		name    string
		commits []func(*Tx)
		want    times // after the last
	}{
		{"one", []func(*Tx){set("a", "a-1", 5, "10.0.0.2")}, times{"ns/a": 5}},
		{"several: the earliest", []func(*Tx){
			set("a", "a-1", 7, "10.0.0.2"), set("a", "a-1", 5, "10.0.0.3"), set("a", "a-2", 6, "10.0.0.4"), set("b", "b-1", 9, "10.0.0.5"),
		}, times{"ns/a": 5, "ns/b": 9}},
		{"several in one commit", []func(*Tx){both(set("a", "a-2", 7, "10.0.0.2"), set("a", "a-1", 6, "10.0.0.3"))}, times{"ns/a": 6}},
		{"one of them not known", []func(*Tx){set("a", "a-1", 7, "10.0.0.2"), set("a", "a-1", 0, "10.0.0.3")}, times{"ns/a": 7}},
		{"not known", []func(*Tx){set("a", "a-1", 0, "10.0.0.2")}, nil},
		{"a time without a change", []func(*Tx){set("a", "a-1", 5, "10.0.0.1")}, nil},
		{"the change is to the service", []func(*Tx){func(tx *Tx) { tx.SetService(service("a", 80)) }}, nil},
		{"a deletion has none, and takes those before it along", []func(*Tx){set("a", "a-2", 5, "10.0.0.2"), remove("a-1")}, nil},
		{"after a deletion", []func(*Tx){set("a", "a-2", 5, "10.0.0.2"), remove("a-1"), set("a", "a-2", 8, "10.0.0.3")}, times{"ns/a": 8}},
		{"a deletion in the same commit, before", []func(*Tx){both(remove("a-1"), set("a", "a-2", 5, "10.0.0.2"))}, nil},
		{"a deletion in the same commit, after", []func(*Tx){both(set("a", "a-2", 5, "10.0.0.2"), remove("a-1"))}, nil},
		{"a slice that moves", []func(*Tx){set("b", "a-1", 5, "10.0.0.1")}, times{"ns/b": 5}},
		{"the service goes", []func(*Tx){
			set("a", "a-1", 5, "10.0.0.2"), func(tx *Tx) { tx.DeleteService("ns", "a") },
		}, nil},
		{"a time that nanoseconds cannot say", []func(*Tx){func(tx *Tx) {
			slice := sliceOf("a", "a-1", endpoint("10.0.0.2"))
			slice.TriggeredAt = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
			tx.SetSlice(slice)
		}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New()
			s.Update(both(func(tx *Tx) { tx.SetService(service("a")); tx.SetService(service("b")) }, set("a", "a-1", 3, "10.0.0.1")))
			before := s.Snapshot()
			for _, commit := range tt.commits {
				s.Update(commit)
			}
			got := s.Snapshot().Since(before).Triggers()
			require.Empty(t, cmp.Diff(tt.want, got, cmpopts.EquateEmpty()))
			require.Empty(t, s.Snapshot().Since(nil).Triggers(), "a whole state has no times")
		})
	}
}

func TestHistoryIsBounded(t *testing.T) {
	s := New()
	for i := range 5 * historyKeys {
		s.Update(func(tx *Tx) { tx.SetService(service("a", int32(i)+1)) })
		require.LessOrEqual(t, len(s.Snapshot().history.changes), 2*historyKeys)
	}
	require.GreaterOrEqual(t, len(s.Snapshot().history.changes), historyKeys)
}
