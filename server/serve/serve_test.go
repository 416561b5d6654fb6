// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFirstSyncComesWhenSyncedAlsoWhenEmpty(t *testing.T) {
	st := store.New()
	w := watchLocal(t, serveOn(t, st), "n1", true)
	synced := make(chan error, 1)
	go func() { synced <- w.next() }()
	select {
	case <-synced:
		t.Fatal("a Sync before the store is synced")
	case <-time.After(50 * time.Millisecond):
	}
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	require.NoError(t, <-synced)
	require.Equal(t, []string{"reset"}, w.ops)
	require.Empty(t, w.state)
}

// TestChangeSets follows a store through changes, as a client that accepts batches and as one that does not.
func TestChangeSets(t *testing.T) {
	steps := []struct {
		name   string
		change func(tx *store.Tx)
		want   []string
	}{
		{
			"first state",
			func(tx *store.Tx) {
				tx.SetService(service("a"))
				tx.SetSlice(slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n2"))
				tx.SetSlice(slice("orphan", "orphan-1", "10.0.0.9@n2"))
				tx.SetNode(node("n1", "z1"))
				tx.SetSynced()
			},
			[]string{"reset", "set ServicesSet ns/a", "set EndpointsSet ns/a/10.0.0.1", "set EndpointsSet ns/a/10.0.0.2"},
		},
		{
			"one endpoint not ready",
			func(tx *store.Tx) { tx.SetSlice(slice("a", "a-1", "10.0.0.1@n1!", "10.0.0.2@n2")) },
			[]string{"delete EndpointsSet ns/a/10.0.0.1"},
		},
		{
			"a service comes, another one's endpoints change, and one goes, in the order of the protocol",
			func(tx *store.Tx) {
				tx.SetService(service("b"))
				tx.SetSlice(slice("b", "b-1", "10.0.0.3@n1"))
				tx.SetSlice(slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n2"))
			},
			[]string{"set ServicesSet ns/b", "set EndpointsSet ns/a/10.0.0.1", "set EndpointsSet ns/b/10.0.0.3"},
		},
		{
			"a service goes: its endpoints first",
			func(tx *store.Tx) { tx.DeleteService("ns", "a"); tx.SetService(service("c")) },
			[]string{
				"set ServicesSet ns/c", "delete EndpointsSet ns/a/10.0.0.1", "delete EndpointsSet ns/a/10.0.0.2",
				"delete ServicesSet ns/a",
			},
		},
		{
			"the service of waiting slices comes",
			func(tx *store.Tx) { tx.SetService(service("orphan")) },
			[]string{"set ServicesSet ns/orphan", "set EndpointsSet ns/orphan/10.0.0.9"},
		},
		{
			"traffic policy",
			func(tx *store.Tx) {
				tx.SetService(service("orphan", func(i *globalv1.ServiceInfo) { i.Service.InternalTrafficToLocal = true }))
			},
			[]string{"set ServicesSet ns/orphan", "set EndpointsSet ns/orphan/10.0.0.9"},
		},
		{
			"a slice moves",
			func(tx *store.Tx) { tx.SetSlice(slice("c", "b-1", "10.0.0.3@n1")) },
			[]string{"delete EndpointsSet ns/b/10.0.0.3", "set EndpointsSet ns/c/10.0.0.3"},
		},
	}
	for _, batch := range []bool{true, false} {
		t.Run(fmt.Sprintf("batch=%v", batch), func(t *testing.T) {
			st := store.New()
			w := watchLocal(t, serveOn(t, st), "n1", batch)
			for _, step := range steps {
				st.Update(step.change)
				require.NoError(t, w.next(), step.name)
				require.Equal(t, step.want, short(w.ops), step.name)
				if batch {
					require.Equal(t, 1, w.messages)
				} else {
					require.Equal(t, len(w.ops)+1, w.messages, "every op is a message of its own")
				}
			}
		})
	}
}

func TestWhatDoesNotConcernANodeIsNotSent(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) { tx.SetService(service("a")); tx.SetSynced() })
	w := watchLocal(t, serveOn(t, st), "n1", true)
	require.NoError(t, w.next())
	// None of these makes a difference; the last one does.
	st.Update(func(tx *store.Tx) { tx.SetNode(node("n2", "z2")) })
	st.Update(func(tx *store.Tx) { tx.SetNode(node("n1", "z1")) })
	st.Update(func(tx *store.Tx) { tx.SetSlice(slice("other", "other-1", "10.0.0.1@n1")) })
	st.Update(func(tx *store.Tx) { tx.SetSlice(slice("a", "a-1", "10.0.0.1@n1!")) })
	go st.Update(func(tx *store.Tx) { tx.SetService(service("b")) })
	require.NoError(t, w.next())
	require.Equal(t, []string{"set ServicesSet ns/b"}, w.ops)
}

func TestHintsAloneAreAChange(t *testing.T) {
	st := store.New()
	hinted := func(zone string) *store.Slice {
		s := slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n2")
		s.Endpoints[0].Hints = &globalv1.TopologyHints{Zones: []string{zone}}
		s.Endpoints[1].Hints = &globalv1.TopologyHints{Zones: []string{"z2"}}
		return s
	}
	st.Update(func(tx *store.Tx) {
		tx.SetService(service("a"))
		tx.SetSlice(hinted("z1"))
		tx.SetNode(node("n1", "z1"))
		tx.SetSynced()
	})
	w := watchLocal(t, serveOn(t, st), "n1", true)
	require.NoError(t, w.next())
	require.Equal(t, []string{"reset", "set ServicesSet ns/a", "set EndpointsSet ns/a/10.0.0.1"}, short(w.ops))

	st.Update(func(tx *store.Tx) { tx.SetSlice(hinted("z2")) })
	require.NoError(t, w.next())
	require.Equal(t, []string{"set EndpointsSet ns/a/10.0.0.2"}, short(w.ops), "no endpoint is hinted for z1 any more, so all are used")

	st.Update(func(tx *store.Tx) { tx.SetSlice(hinted("z1")) })
	require.NoError(t, w.next())
	st.Update(func(tx *store.Tx) { tx.SetNode(node("n1", "z2")) })
	require.NoError(t, w.next())
	require.Equal(t, []string{"delete EndpointsSet ns/a/10.0.0.1", "set EndpointsSet ns/a/10.0.0.2"}, short(w.ops), "the node moved to z2")
}

func TestANodeNameMayChangeFromRequestToRequest(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) {
		tx.SetService(service("a"))
		tx.SetSlice(slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n2", "10.0.0.3@n3"))
		tx.SetSynced()
	})
	stream, err := localv1.NewSetsClient(dial(t, serveOn(t, st))).Watch(t.Context())
	require.NoError(t, err)
	name := "n1"
	w := &watch{
		request: func() error { return stream.Send(&localv1.WatchReq{NodeName: name}) },
		recv:    stream.Recv,
		state:   map[string]proto.Message{},
	}
	require.NoError(t, w.next())
	name = "n2"
	require.NoError(t, w.next())
	require.Equal(t, []string{"set EndpointsSet ns/a/10.0.0.1", "set EndpointsSet ns/a/10.0.0.2"}, short(w.ops))
}

// TestAllEndpoints: who asks sees more, from one request to the next too, and who does not sees nothing of it.
func TestAllEndpoints(t *testing.T) {
	st := store.New()
	terminating := slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n2", "10.0.0.3@n2!", "10.0.0.4@n2!")
	terminating.Endpoints[2].Conditions = &globalv1.EndpointConditions{Serving: true, Terminating: true}
	st.Update(func(tx *store.Tx) {
		tx.SetService(service("a", func(i *globalv1.ServiceInfo) {
			i.Service.InternalTrafficToLocal, i.Service.ExternalTrafficToLocal = true, true
			i.CreatedAt = 1234
		}))
		tx.SetSlice(terminating)
		tx.SetSynced()
	})
	target := serveOn(t, st)
	stream, err := localv1.NewSetsClient(dial(t, target)).Watch(t.Context())
	require.NoError(t, err)
	all := true
	w := &watch{
		request: func() error { return stream.Send(&localv1.WatchReq{NodeName: "n1", AllEndpoints: all}) },
		recv:    stream.Recv,
		state:   map[string]proto.Message{},
	}
	require.NoError(t, w.next())
	seen := map[string]string{}
	for place, value := range w.state {
		if svc, ok := value.(*localv1.Service); ok {
			require.EqualValues(t, 1234, svc.CreatedAt)
		}
		if ep, ok := value.(*localv1.Endpoint); ok {
			seen[short([]string{place})[0]] = fmt.Sprintf("%v/%v/%v", ep.Scopes.GetInternal(), ep.Scopes.GetCluster(), ep.Terminating)
		}
	}
	require.Equal(t, map[string]string{
		"EndpointsSet ns/a/10.0.0.1": "true/true/false",
		"EndpointsSet ns/a/10.0.0.2": "false/true/false",
		"EndpointsSet ns/a/10.0.0.3": "false/false/true",
	}, seen)

	all = false
	require.NoError(t, w.next())
	require.Equal(t, []string{
		"set ServicesSet ns/a", "set EndpointsSet ns/a/10.0.0.1", "delete EndpointsSet ns/a/10.0.0.2", "delete EndpointsSet ns/a/10.0.0.3",
	}, short(w.ops))
	require.Len(t, w.state, 2)
	for _, value := range w.state {
		if svc, ok := value.(*localv1.Service); ok {
			require.Zero(t, svc.CreatedAt)
		}
	}

	other := watchLocal(t, target, "n1", true)
	require.NoError(t, other.next())
	require.Empty(t, cmp.Diff(w.state, other.state, protocmp.Transform()))
}

// TestTriggerTimes: the ops about endpoints say when what made them happened, to those who ask.
func TestTriggerTimes(t *testing.T) {
	at := func(at int64, s *store.Slice) *store.Slice { s.TriggeredAt = time.Unix(0, at); return s }
	steps := []struct {
		name   string
		change []func(tx *store.Tx)
		want   []string // in full; without the times, what those are sent who do not ask
	}{
		{
			"first state",
			[]func(tx *store.Tx){func(tx *store.Tx) {
				tx.SetService(service("a"))
				tx.SetService(service("b"))
				tx.SetSlice(at(100, slice("a", "a-1", "10.0.0.1@n1")))
				tx.SetSynced()
			}},
			[]string{"reset", "set ServicesSet ns/a", "set ServicesSet ns/b", "set EndpointsSet ns/a/10.0.0.1"},
		},
		{
			"only what differs is sent, with the first of the times",
			[]func(tx *store.Tx){
				func(tx *store.Tx) { tx.SetSlice(at(202, slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n1"))) },
				func(tx *store.Tx) {
					tx.SetSlice(at(201, slice("a", "a-2", "10.0.0.3@n1")))
					tx.SetSlice(slice("b", "b-1", "10.0.0.4@n1"))
				},
			},
			[]string{"set EndpointsSet ns/a/10.0.0.2 @201", "set EndpointsSet ns/a/10.0.0.3 @201", "set EndpointsSet ns/b/10.0.0.4"},
		},
		{
			"an endpoint goes, and a service comes",
			[]func(tx *store.Tx){func(tx *store.Tx) {
				tx.SetService(service("c"))
				tx.SetSlice(at(300, slice("a", "a-1", "10.0.0.1@n1")))
			}},
			[]string{"set ServicesSet ns/c", "delete EndpointsSet ns/a/10.0.0.2 @300"},
		},
		{
			"what nobody could be told of is not told later",
			[]func(tx *store.Tx){
				func(tx *store.Tx) { tx.SetSlice(at(400, slice("d", "d-1", "10.0.0.5@n1"))) },
				func(tx *store.Tx) { tx.SetSlice(at(401, slice("a", "a-1", "10.0.0.6@n1"))) },
			},
			[]string{"delete EndpointsSet ns/a/10.0.0.1 @401", "set EndpointsSet ns/a/10.0.0.6 @401"},
		},
		{
			"a service goes",
			[]func(tx *store.Tx){
				func(tx *store.Tx) { tx.SetSlice(at(500, slice("a", "a-1", "10.0.0.7@n1"))) },
				func(tx *store.Tx) { tx.DeleteService("ns", "a") },
			},
			[]string{"delete EndpointsSet ns/a/10.0.0.3", "delete EndpointsSet ns/a/10.0.0.6", "delete ServicesSet ns/a"},
		},
	}
	st := store.New()
	target := serveOn(t, st)
	watchers := map[string]*watch{}
	for _, asks := range []bool{true, false} {
		for _, batch := range []bool{true, false} {
			stream, err := localv1.NewSetsClient(dial(t, target)).Watch(t.Context())
			require.NoError(t, err)
			watchers[fmt.Sprintf("asks=%v batch=%v", asks, batch)] = &watch{
				request: func() error {
					return stream.Send(&localv1.WatchReq{NodeName: "n1", AcceptBatch: batch, TriggerTimes: asks})
				},
				recv:  stream.Recv,
				state: map[string]proto.Message{},
			}
		}
	}
	sink, w := newChannelSink()
	watchers["asks=true in process"] = w
	go func() { _ = InProcess(t.Context(), st, askingTimes{sink}, false) }()
	t.Cleanup(func() { close(sink.requests) })

	for _, step := range steps {
		for _, change := range step.change {
			st.Update(change)
		}
		for name, w := range watchers {
			require.NoError(t, w.next(), step.name)
			want := slices.Clone(step.want)
			if strings.HasPrefix(name, "asks=false") {
				for i, op := range want {
					want[i], _, _ = strings.Cut(op, " @")
				}
			}
			require.Equal(t, want, short(w.ops), "%s, %s", step.name, name)
		}
	}
}

type askingTimes struct{ *channelSink }

func (askingTimes) Ask(req *localv1.WatchReq) { req.TriggerTimes = true }

func TestGlobal(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) {
		tx.SetNode(node("n1", "z1"))
		tx.SetService(service("a"))
		tx.SetSlice(slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n1!"))
		tx.SetSynced()
	})
	target := serveOn(t, st)
	w := watchGlobal(t, target, true)
	require.NoError(t, w.next())
	require.Equal(t, []string{
		"reset", "set GlobalNodeInfos n1", "set GlobalServiceInfos ns/a",
		"set GlobalEndpointInfos ns/a/10.0.0.1", "set GlobalEndpointInfos ns/a/10.0.0.2",
	}, short(w.ops))

	old := watchGlobal(t, target, false, grpc.WithUserAgent("grpc-go/1.38.0"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, old.next())
	for _, op := range old.ops[1:] {
		require.Equal(t, 3, strings.Count(op, "|"), "what the retired kpng api can read: %s", op)
	}

	st.Update(func(tx *store.Tx) { tx.SetSlice(slice("a", "a-1", "10.0.0.1@n1", "10.0.0.2@n1")) })
	require.NoError(t, w.next())
	require.Equal(t, []string{"set GlobalEndpointInfos ns/a/10.0.0.2"}, short(w.ops))
	st.Update(func(tx *store.Tx) {
		tx.SetService(service("a", func(i *globalv1.ServiceInfo) { i.PublishNotReadyAddresses = true }))
	})
	require.NoError(t, w.next())
	require.Equal(t, []string{"set GlobalServiceInfos ns/a"}, short(w.ops))
	st.Update(func(tx *store.Tx) { tx.DeleteNode("n1"); tx.DeleteService("ns", "a") })
	require.NoError(t, w.next())
	require.Equal(t, []string{
		"delete GlobalEndpointInfos ns/a/10.0.0.1", "delete GlobalEndpointInfos ns/a/10.0.0.2",
		"delete GlobalServiceInfos ns/a", "delete GlobalNodeInfos n1",
	}, short(w.ops))
	require.Empty(t, w.state)
}

func TestLargeStateIsCutIntoFrames(t *testing.T) {
	st := store.New()
	big := strings.Repeat("x", 3*frameSize)
	st.Update(func(tx *store.Tx) {
		for i := range 2000 {
			tx.SetService(service(fmt.Sprintf("svc-%04d", i)))
			tx.SetSlice(slice(fmt.Sprintf("svc-%04d", i), fmt.Sprintf("slice-%04d", i), "10.0.0.1@n1"))
		}
		tx.SetService(service("with-a-large-annotation", func(i *globalv1.ServiceInfo) {
			i.Service.Annotations = map[string]string{"large": big}
		}))
		tx.SetSynced()
	})
	w := watchLocal(t, serveOn(t, st), "n1", true)
	require.NoError(t, w.next())
	require.Len(t, w.state, 4001)
	require.Greater(t, w.messages, 3)
	require.Less(t, w.messages, 40)
	got := w.state["ServicesSet ns/with-a-large-annotation"].(*localv1.Service)
	require.Equal(t, big, got.Annotations["large"])
}

func TestTooManyWatchers(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	target := serveOn(t, st, func(c *Config) { c.MaxWatchers = 2 })
	for range 2 {
		require.NoError(t, watchLocal(t, target, "n1", true).next())
	}
	err := watchGlobal(t, target, true).next()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorContains(t, err, "--max-watchers")
}

func TestPlacesOfWatchersAreFreed(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	target := serveOn(t, st, func(c *Config) { c.MaxWatchers = 1 })
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		require.Eventually(t, func() bool {
			stream, err := localv1.NewSetsClient(dial(t, target)).Watch(ctx)
			require.NoError(t, err)
			w := &watch{request: func() error { return stream.Send(&localv1.WatchReq{}) }, recv: stream.Recv, state: map[string]proto.Message{}}
			return w.next() == nil
		}, 10*time.Second, 10*time.Millisecond)
		cancel()
	}
}

func TestRequestsAreBounded(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	err := watchLocal(t, serveOn(t, st), strings.Repeat("n", maxRequestSize+1), true).next()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestHealth(t *testing.T) {
	st := store.New()
	client := grpc_health_v1.NewHealthClient(dial(t, serveOn(t, st)))
	check := func() grpc_health_v1.HealthCheckResponse_ServingStatus {
		resp, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "localv1.Sets"})
		require.NoError(t, err)
		return resp.Status
	}
	require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, check())
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	require.Eventually(t, func() bool { return check() == grpc_health_v1.HealthCheckResponse_SERVING }, 10*time.Second, time.Millisecond)
}

func TestOnlyWhatIsAskedForIsServed(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	err := watchGlobal(t, serveOn(t, st, func(c *Config) { c.Global = false }), true).next()
	require.Equal(t, codes.Unimplemented, status.Code(err))
	err = watchLocal(t, serveOn(t, st, func(c *Config) { c.Local = false }), "n", true).next()
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

// TestAWatcherThatDoesNotReadDelaysNobody: it gets one difference when it comes back, and is the only one to wait.
func TestAWatcherThatDoesNotReadDelaysNobody(t *testing.T) {
	st := store.New()
	fill := func(tag string) func(*store.Tx) {
		return func(tx *store.Tx) {
			for i := range 500 {
				tx.SetService(service(fmt.Sprintf("svc-%d", i), func(info *globalv1.ServiceInfo) {
					info.Service.Annotations = map[string]string{"x": tag + strings.Repeat("x", 2000)} // a megabyte in all
				}))
			}
			tx.SetSynced()
		}
	}
	st.Update(fill("0"))
	target := serveOn(t, st)
	slow := watchLocal(t, target, "n1", true)
	require.NoError(t, slow.next())
	st.Update(fill("1"))
	require.NoError(t, slow.request()) // and does not read

	healthy := watchLocal(t, target, "n1", true)
	require.NoError(t, healthy.next())
	for i := range 20 {
		st.Update(fill(fmt.Sprint(i + 2)))
		require.NoError(t, healthy.next())
	}
	request := slow.request
	slow.request = func() error { return nil } // it has asked already
	require.NoError(t, slow.next())
	slow.request = request
	require.NoError(t, slow.next())
	require.Equal(t, len(healthy.state), len(slow.state))
	for place, value := range healthy.state {
		require.True(t, proto.Equal(value, slow.state[place]), place)
	}
	require.Equal(t, 3, slow.sets, "21 changes came as two differences")
}

// TestMetrics: each watcher is told apart, also those that come from nowhere, as on a unix socket.
func TestMetrics(t *testing.T) {
	st := store.New()
	st.Update(func(tx *store.Tx) { tx.SetService(service("a")); tx.SetSynced() })
	socket := filepath.Join(t.TempDir(), "s")
	server := run(t, &Config{Listen: []string{"unix://" + socket}, Local: true, Global: true, MaxWatchers: 10}, st)
	for range 2 {
		require.NoError(t, watchLocal(t, "unix://"+socket, "n1", true).next())
	}
	require.Eventually(t, func() bool { // a client has its Sync a moment before the server notes that it was sent
		server.watchers.mu.Lock()
		defer server.watchers.mu.Unlock()
		sent := 0
		for w := range server.watchers.all {
			w.mu.Lock()
			if w.revision == 1 {
				sent++
			}
			w.mu.Unlock()
		}
		return sent == 2
	}, 10*time.Second, time.Millisecond)
	st.Update(func(tx *store.Tx) { tx.SetService(service("b")) })

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(append(server.Collectors(), StoreCollector(st))...)
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]int{}
	for _, family := range families {
		got[family.GetName()] = len(family.GetMetric())
		if family.GetName() == "kpng_watcher_lag_commits" {
			for _, m := range family.GetMetric() {
				require.InDelta(t, 1, m.GetGauge().GetValue(), 0, "one commit that it has not asked for")
			}
		}
	}
	require.Equal(t, 2, got["kpng_watcher_lag_commits"])
	require.Equal(t, 4, got["kpng_store_objects"])
	require.Equal(t, 1, got["kpng_ops_sent_total"])
}
