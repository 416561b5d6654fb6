// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/serve"
	"sigs.k8s.io/kpng/server/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func service(name string) *globalv1.ServiceInfo {
	return &globalv1.ServiceInfo{Service: &localv1.Service{Namespace: "ns", Name: name}}
}

func sliceOf(svc, name string, ips ...string) *store.Slice {
	s := &store.Slice{Namespace: "ns", Name: name, Service: svc}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, &globalv1.EndpointInfo{
			Namespace: "ns", SourceName: name, ServiceName: svc,
			Endpoint:   &localv1.Endpoint{IPs: localv1.NewIPSet(ip)},
			Conditions: &globalv1.EndpointConditions{Ready: true, Serving: true},
			Topology:   &globalv1.TopologyInfo{Node: "n1", Zone: "z1"},
			Hints:      &globalv1.TopologyHints{Zones: []string{"z1"}},
			PodName:    "pod-" + ip,
		})
	}
	return s
}

// central is a kpng that can be stopped and started again, as after a crash with another store.
type central struct {
	t      *testing.T
	socket string
	stop   func()
}

func (c *central) start(st *store.Store) {
	c.t.Helper()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config := &serve.Config{}
	config.BindFlags(flags)
	require.NoError(c.t, flags.Parse([]string{"--listen=unix://" + c.socket}))
	server, err := serve.New(config, st)
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	c.stop = func() { cancel(); require.NoError(c.t, <-done) }
}

// follow runs a source on a store until the test ends.
func follow(t *testing.T, socket string, st *store.Store) *Source {
	t.Helper()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config := &Config{}
	config.BindFlags(flags)
	require.NoError(t, flags.Parse([]string{"--api=unix://" + socket, "--error-delay=10ms"}))
	source, err := New(config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx, st) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return source
}

// content is all that a snapshot holds, decoded.
type content struct {
	Synced   bool
	Services []*globalv1.ServiceInfo
	Slices   []*store.Slice
	Nodes    []*globalv1.Node
}

func contentOf(s *store.Snapshot) (c content) {
	c.Synced = s.Synced()
	for svc := range s.Services() {
		if svc.Exists() {
			c.Services = append(c.Services, svc.Info())
			c.Slices = append(c.Slices, svc.Slices()...)
		}
	}
	for node := range s.Nodes() {
		c.Nodes = append(c.Nodes, node.Info())
	}
	return c
}

func requireSame(t *testing.T, want, got *store.Store) {
	t.Helper()
	diff := ""
	require.Eventually(t, func() bool {
		diff = cmp.Diff(contentOf(want.Snapshot()), contentOf(got.Snapshot()), protocmp.Transform())
		return diff == ""
	}, 20*time.Second, 5*time.Millisecond, "the copy differs")
	require.Empty(t, diff)
}

func TestFollow(t *testing.T) {
	c := &central{t: t, socket: filepath.Join(t.TempDir(), "s")}
	first, copied := store.New(), store.New()
	c.start(first)
	source := follow(t, c.socket, copied)
	require.ErrorContains(t, source.Ready(), "no state")
	require.False(t, copied.Snapshot().Synced())

	for i, change := range []func(tx *store.Tx){
		func(tx *store.Tx) { tx.SetSynced() },
		func(tx *store.Tx) { tx.SetNode(&globalv1.Node{Name: "n1", Labels: map[string]string{"a": "b"}}) },
		func(tx *store.Tx) {
			tx.SetService(service("a"))
			tx.SetSlice(sliceOf("a", "s1", "10.0.0.1", "10.0.0.2"))
		},
		func(tx *store.Tx) { tx.SetSlice(sliceOf("a", "s2", "10.0.0.3")) },
		func(tx *store.Tx) { tx.SetSlice(sliceOf("a", "s1", "10.0.0.2", "10.0.0.4")) },
		func(tx *store.Tx) {
			tx.SetService(service("b"))
			tx.SetSlice(sliceOf("b", "s1", "10.0.0.2", "10.0.0.4"))
		}, // moves
		func(tx *store.Tx) { info := service("a"); info.PublishNotReadyAddresses = true; tx.SetService(info) },
		func(tx *store.Tx) { tx.DeleteSlice("ns", "s2") },
		func(tx *store.Tx) { tx.DeleteService("ns", "b"); tx.DeleteNode("n1") },
	} {
		first.Update(change)
		t.Run(fmt.Sprint(i), func(t *testing.T) { requireSame(t, first, copied) })
	}
	require.NoError(t, source.Ready())

	// The central kpng is away: the last state stays, and readiness says so.
	c.stop()
	require.Eventually(t, func() bool { return source.Ready() != nil }, 10*time.Second, time.Millisecond)
	require.ErrorContains(t, source.Ready(), "stale since")
	requireSame(t, first, copied)

	// It comes back without a state of its own yet, then with the same: nothing changes.
	before := copied.Snapshot()
	second := store.New()
	c.start(second)
	second.Update(func(tx *store.Tx) { refill(tx, first.Snapshot()) })
	time.Sleep(50 * time.Millisecond)
	require.Same(t, before, copied.Snapshot(), "no flap while the central kpng is not synced")
	second.Update(func(tx *store.Tx) { tx.SetSynced() })
	require.Eventually(t, func() bool { return source.Ready() == nil }, 10*time.Second, time.Millisecond)
	require.Same(t, before, copied.Snapshot(), "the resend of an equal state is no change")

	// And once more, with another one: what it does not tell any more is gone.
	c.stop()
	third := store.New()
	third.Update(func(tx *store.Tx) {
		tx.SetService(service("c"))
		tx.SetSlice(sliceOf("c", "s9", "10.0.0.9"))
		tx.SetSynced()
	})
	c.start(third)
	requireSame(t, third, copied)
	c.stop()
}

// TestTriggerTimes: what the central kpng knows of them, the watchers of the copy are told.
func TestTriggerTimes(t *testing.T) {
	c := &central{t: t, socket: filepath.Join(t.TempDir(), "s")}
	first, copied := store.New(), store.New()
	first.Update(func(tx *store.Tx) {
		tx.SetService(service("a"))
		slice := sliceOf("a", "s1", "10.0.0.1")
		slice.TriggeredAt = time.Unix(0, 1)
		tx.SetSlice(slice)
		tx.SetSynced()
	})
	c.start(first)
	follow(t, c.socket, copied)
	requireSame(t, first, copied)
	before := copied.Snapshot()
	require.Empty(t, before.Since(nil).Triggers())

	first.Update(func(tx *store.Tx) {
		one, two := sliceOf("a", "s1", "10.0.0.1", "10.0.0.2"), sliceOf("a", "s2", "10.0.0.3")
		one.TriggeredAt, two.TriggeredAt = time.Unix(0, 3), time.Unix(0, 2)
		tx.SetSlice(one)
		tx.SetSlice(two)
	})
	requireSame(t, first, copied)
	require.Equal(t, map[string]int64{"ns/a": 2}, copied.Snapshot().Since(before).Triggers())

	before = copied.Snapshot()
	first.Update(func(tx *store.Tx) { tx.SetSlice(sliceOf("a", "s1", "10.0.0.4")) })
	requireSame(t, first, copied)
	require.Empty(t, copied.Snapshot().Since(before).Triggers(), "not known")
	c.stop()
}

func refill(tx *store.Tx, from *store.Snapshot) {
	for svc := range from.Services() {
		tx.SetService(svc.Info())
		for _, s := range svc.Slices() {
			tx.SetSlice(s)
		}
	}
	for node := range from.Nodes() {
		tx.SetNode(node.Info())
	}
}

func set(kind localv1.Set, path string, m proto.Message) *localv1.OpItem {
	bytes, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return &localv1.OpItem{Op: &localv1.OpItem_Set{Set: &localv1.Value{Ref: &localv1.Ref{Set: kind, Path: path}, Bytes: bytes}}}
}

func syncOp() *localv1.OpItem { return &localv1.OpItem{Op: &localv1.OpItem_Sync{}} }

// TestRetiredServer: the retired kpng names values in its own way and sends each endpoint twice.
func TestRetiredServer(t *testing.T) {
	st := store.New()
	f := newFollower(st)
	ep := sliceOf("a", "s1", "10.0.0.1").Endpoints[0]
	f.begin()
	for _, op := range []*localv1.OpItem{
		set(localv1.Set_GlobalNodeInfos, "|n1||", &globalv1.NodeInfo{Node: &globalv1.Node{Name: "n1"}}),
		set(localv1.Set_GlobalServiceInfos, "ns|a||", service("a")),
		set(localv1.Set_GlobalEndpointInfos, "ns||s1|1234", ep),
		set(localv1.Set_GlobalEndpointInfos, "ns|a|s1|1234", ep),
		syncOp(),
	} {
		f.apply(op)
	}
	require.Len(t, st.Snapshot().Service("ns/a").Endpoints(), 1)
	require.NotNil(t, st.Snapshot().Node("n1"))

	for _, path := range []string{"ns||s1|1234", "ns|a|s1|1234"} {
		f.apply(&localv1.OpItem{Op: &localv1.OpItem_Delete{Delete: &localv1.Ref{Set: localv1.Set_GlobalEndpointInfos, Path: path}}})
	}
	f.apply(syncOp())
	require.Empty(t, st.Snapshot().Service("ns/a").Endpoints())
}

// TestBrokenStream: a stream that ends within a set changes nothing, and the next one starts from what the server says.
func TestBrokenStream(t *testing.T) {
	st := store.New()
	f := newFollower(st)
	f.begin()
	f.apply(set(localv1.Set_GlobalServiceInfos, "ns/a", service("a")))
	f.apply(syncOp())
	f.apply(set(localv1.Set_GlobalServiceInfos, "ns/b", service("b"))) // and then the stream breaks
	require.Nil(t, st.Snapshot().Service("ns/b"))

	f.begin()
	f.apply(&localv1.OpItem{Op: &localv1.OpItem_Reset_{}})
	f.apply(set(localv1.Set_GlobalServiceInfos, "ns/a", service("a")))
	require.NotNil(t, st.Snapshot().Service("ns/a"))
	f.apply(syncOp())
	require.NotNil(t, st.Snapshot().Service("ns/a"))
	require.Nil(t, st.Snapshot().Service("ns/b"), "b was never told again")
}

// FuzzApply: no op makes the follower panic, or keeps it from taking the next good state.
func FuzzApply(f *testing.F) {
	for _, op := range []*localv1.OpItem{
		syncOp(), {},
		set(localv1.Set_GlobalServiceInfos, "ns/a", service("a")),
		set(localv1.Set_GlobalEndpointInfos, "ns/a/k", sliceOf("a", "s", "10.0.0.1").Endpoints[0]),
		set(localv1.Set_GlobalEndpointInfos, "|||", &globalv1.EndpointInfo{}),
		set(localv1.Set_GlobalNodeInfos, "", &globalv1.NodeInfo{}),
		{Op: &localv1.OpItem_Set{}}, {Op: &localv1.OpItem_Delete{}},
		{Op: &localv1.OpItem_Set{Set: &localv1.Value{Ref: &localv1.Ref{Set: localv1.Set_GlobalServiceInfos}, Bytes: []byte("garbage")}}},
		{Op: &localv1.OpItem_Batch{Batch: &localv1.OpBatch{Ops: []*localv1.OpItem{syncOp(), {Op: &localv1.OpItem_Batch{}}}}}},
	} {
		seed, err := proto.Marshal(op)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		op := &localv1.OpItem{}
		if proto.Unmarshal(bytes, op) != nil {
			return
		}
		st := store.New()
		fl := newFollower(st)
		fl.begin()
		fl.apply(op)
		fl.apply(set(localv1.Set_GlobalServiceInfos, "good", service("good")))
		fl.apply(syncOp())
		require.True(t, st.Snapshot().Service("ns/good").Exists())
	})
}
