// SPDX-License-Identifier: Apache-2.0

package changes_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	. "sigs.k8s.io/kpng/internal/localtest"
)

// recorder notes the calls, one line each: "set ns/a=1.0.0.1; delete ns/b".
type recorder struct {
	sink  *changes.Sink
	calls []string
}

func newRecorder() *recorder {
	r := &recorder{}
	r.sink = changes.New(nil, func(changes []changes.Change) error {
		r.calls = append(r.calls, text(changes))
		return nil
	})
	return r
}

func text(list []changes.Change) string {
	all := make([]string, 0, len(list))
	for _, c := range list {
		line := string(c.Op) + " " + c.Item.Service.NamespacedName()
		if c.Op == changes.Set {
			ips := make([]string, 0, len(c.Item.Endpoints))
			for _, ep := range c.Item.Endpoints {
				ips = append(ips, ep.IPs.All()...)
			}
			line += "=" + strings.Join(ips, ",")
		}
		all = append(all, line)
	}
	return strings.Join(all, "; ")
}

func (r *recorder) send(t *testing.T, ops ...*localv1.OpItem) {
	t.Helper()
	for _, op := range ops {
		require.NoError(t, r.sink.Send(op))
	}
}

func (r *recorder) want(t *testing.T, calls ...string) {
	t.Helper()
	require.Equal(t, calls, r.calls)
	r.calls = nil
}

func svc(path string) *localv1.OpItem { return SetService(Service(path, "10.0.0.1", 80)) }

func ep(path, ip string) *localv1.OpItem {
	i := strings.LastIndexByte(path, '/')
	return SetEndpoint(path[:i], path[i+1:], Endpoint(ip))
}

func TestAsk(t *testing.T) {
	for _, asks := range []struct{ all, times bool }{{false, false}, {true, false}, {false, true}} {
		sink := changes.New(nil, nil)
		sink.AllEndpoints, sink.TriggerTimes = asks.all, asks.times
		req := &localv1.WatchReq{NodeName: "n"}
		localsink.Ask(sink, req)
		require.Equal(t, asks.all, req.AllEndpoints)
		require.Equal(t, asks.times, req.TriggerTimes)
		require.Equal(t, "n", req.NodeName)
	}
}

func TestChanges(t *testing.T) {
	r := newRecorder()
	r.sink.Setup()
	r.sink.Reset()
	r.send(t, Reset(), svc("ns/b"), svc("ns/a"), ep("ns/a/2", "1.0.0.2"), ep("ns/a/1", "1.0.0.1"), Sync())
	r.want(t, "set ns/a=1.0.0.1,1.0.0.2; set ns/b=")

	r.send(t, Sync())
	r.want(t)

	r.send(t, ep("ns/a/3", "1.0.0.3"), Sync())
	r.want(t, "set ns/a=1.0.0.1,1.0.0.2,1.0.0.3")

	r.send(t, svc("ns/c"), Delete("ns/a/1"), Delete("ns/a/2"), Delete("ns/a/3"), Delete("ns/a"), Sync())
	r.want(t, "delete ns/a; set ns/c=")

	r.send(t, svc("ns/c"), Delete("ns/none"), Delete("ns/none/1"), ep("ns/c/1", "3.0.0.1"), Delete("ns/c/1"), Sync())
	r.want(t) // all of it is as it was

	r.send(t, ep("ns/orphan/1", "4.0.0.1"), Sync())
	r.want(t)
	r.send(t, svc("ns/orphan"), Sync())
	r.want(t, "set ns/orphan=4.0.0.1")

	r.send(t, append(Garbage(), Sync())...)
	r.want(t)
}

// at gives an op the time of its trigger.
func at(nanoseconds int64, op *localv1.OpItem) *localv1.OpItem {
	op.TriggeredAt = nanoseconds
	return op
}

func TestTriggeredAt(t *testing.T) {
	var got map[string]int64 // of the last call; -1 for none
	sink := changes.New(nil, func(list []changes.Change) error {
		got = map[string]int64{}
		for _, c := range list {
			got[c.Item.Service.NamespacedName()] = -1
			if !c.TriggeredAt.IsZero() {
				got[c.Item.Service.NamespacedName()] = c.TriggeredAt.UnixNano()
			}
		}
		return nil
	})
	send := func(ops ...*localv1.OpItem) {
		t.Helper()
		got = nil
		for _, op := range ops {
			require.NoError(t, sink.Send(op))
		}
	}
	sink.Reset()
	send(Reset(), svc("ns/a"), svc("ns/b"), ep("ns/a/1", "1.0.0.1"), Sync())
	require.Equal(t, map[string]int64{"ns/a": -1, "ns/b": -1}, got)

	send(Batch(at(9, ep("ns/a/2", "1.0.0.2")), at(7, Delete("ns/a/1")), at(8, ep("ns/a/3", "1.0.0.3")), ep("ns/b/1", "1.0.0.4"), Sync()))
	require.Equal(t, map[string]int64{"ns/a": 7, "ns/b": -1}, got, "the earliest, and of no other service")

	send(ep("ns/a/4", "1.0.0.5"), Sync())
	require.Equal(t, map[string]int64{"ns/a": -1}, got, "a time is told once")

	send(at(20, ep("ns/a/4", "1.0.0.5")), Sync())
	require.Nil(t, got, "no change, no call")
	send(ep("ns/a/4", "1.0.0.6"), Sync())
	require.Equal(t, map[string]int64{"ns/a": -1}, got)

	send(at(30, ep("ns/a/5", "1.0.0.7")))
	sink.Reset()
	send(Reset(), svc("ns/a"), ep("ns/a/5", "1.0.0.7"), Sync())
	require.Equal(t, map[string]int64{"ns/a": -1, "ns/b": -1}, got, "the set of which this was the time broke off")

	send(append(Garbage(), at(40, Delete("ns/a/5")), at(-1, ep("ns/a/6", "1.0.0.8")), at(41, &localv1.OpItem{}), Sync())...)
	require.Equal(t, map[string]int64{"ns/a": 40}, got)
	send(at(50, Delete("ns/a/6")), Delete("ns/a"), Sync())
	require.Equal(t, map[string]int64{"ns/a": -1}, got, "a Delete has none")
}

func TestReconnect(t *testing.T) {
	r := newRecorder()
	full := []*localv1.OpItem{svc("ns/a"), svc("ns/b"), svc("ns/c"), ep("ns/a/1", "1.0.0.1"), ep("ns/b/1", "2.0.0.1")}
	r.send(t, append(full, Sync())...)
	r.want(t, "set ns/a=1.0.0.1; set ns/b=2.0.0.1; set ns/c=")

	r.send(t, ep("ns/a/1", "9.9.9.9"), Delete("ns/c")) // broken off
	r.sink.Reset()
	r.send(t, append(append([]*localv1.OpItem{Reset()}, full...), Sync())...)
	r.want(t)

	r.send(t, ep("ns/a/1", "9.9.9.9"))
	r.sink.Reset()
	r.send(t, Reset(), svc("ns/a"), svc("ns/b"), svc("ns/d"), ep("ns/a/1", "9.9.9.9"), ep("ns/b/1", "2.0.0.1"), Sync())
	r.want(t, "set ns/a=9.9.9.9; delete ns/c; set ns/d=")

	r.send(t, Reset(), Sync())
	r.want(t, "delete ns/a; delete ns/b; delete ns/d")
}

func TestFirstSyncCallsAlsoWithNothing(t *testing.T) {
	r := newRecorder()
	r.send(t, Reset(), Sync())
	r.want(t, "")
	r.send(t, Reset(), Sync(), Sync())
	r.want(t)
}

func TestErrorsComeBack(t *testing.T) {
	want := errors.New("no")
	calls := 0
	sink := &changes.Sink{Config: &localsink.Config{NodeName: "n"}, Callback: func([]changes.Change) error {
		calls++
		return want
	}}
	require.ErrorIs(t, sink.Send(Sync()), want)
	require.NoError(t, sink.Send(Sync()))
	require.Equal(t, 1, calls)
	node, err := sink.WaitRequest()
	require.NoError(t, err)
	require.Equal(t, "n", node)
	require.NoError(t, new(changes.Sink).Send(Sync()))
}

// TestChangesAddUpToTheFullState applies random sets, broken ones and resends among them, to both sinks: what the
// changes add up to is at each call what the full state is.
func TestChangesAddUpToTheFullState(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var full []*fullstate.ServiceEndpoints
	fullSink := fullstate.New(nil)
	fullSink.Callback = fullstate.ArrayCallback(func(items []*fullstate.ServiceEndpoints) { full = items })
	sum := map[string]*fullstate.ServiceEndpoints{}
	changesSink := changes.New(nil, func(list []changes.Change) error {
		for _, c := range list {
			name := c.Item.Service.NamespacedName()
			if c.Op == changes.Delete {
				require.Contains(t, sum, name)
				require.Empty(t, c.Item.Endpoints)
				delete(sum, name)
				continue
			}
			if was := sum[name]; was != nil {
				require.NotEmpty(t, cmp.Diff(was, c.Item, protocmp.Transform()), "a change of nothing")
			}
			sum[name] = c.Item
		}
		return nil
	})
	send := func(ops ...*localv1.OpItem) {
		for _, op := range ops {
			require.NoError(t, fullSink.Send(op))
			require.NoError(t, changesSink.Send(op))
		}
	}
	random := func() *localv1.OpItem {
		path := fmt.Sprintf("ns%d/%s", rnd.IntN(2), []string{"a", "a-b", "a.b", "b"}[rnd.IntN(4)])
		key := fmt.Sprint(rnd.IntN(4))
		switch rnd.IntN(6) {
		case 0:
			return Delete(path)
		case 1:
			return Delete(path + "/" + key)
		case 2:
			return SetService(Service(path, "10.0.0.1", rnd.Int32N(3)))
		default:
			return ep(path+"/"+key, fmt.Sprintf("1.0.0.%d", rnd.IntN(3)))
		}
	}
	for range 500 {
		if rnd.IntN(4) == 0 {
			send(Reset())
		}
		for range rnd.IntN(12) {
			send(random())
		}
		if rnd.IntN(5) == 0 {
			fullSink.Reset()
			changesSink.Reset()
			continue
		}
		send(Sync())
		items := make([]*fullstate.ServiceEndpoints, 0, len(sum))
		for _, name := range slices.Sorted(maps.Keys(sum)) {
			items = append(items, sum[name])
		}
		require.Equal(t, len(full), len(items))
		require.Empty(t, cmp.Diff(full, items, protocmp.Transform()))
	}
}

func BenchmarkChange(b *testing.B) {
	for _, services := range []int{100, 20000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			sink := changes.New(nil, func([]changes.Change) error { return nil })
			for i := range services {
				path := fmt.Sprintf("ns/service-%06d", i)
				_ = sink.Send(svc(path))
				for j := range 10 {
					_ = sink.Send(SetEndpoint(path, fmt.Sprint(j), Endpoint(fmt.Sprintf("10.1.%d.%d", i%256, j))))
				}
			}
			_ = sink.Send(Sync())
			change := []*localv1.OpItem{ep("ns/service-000050/5", "10.9.9.1"), ep("ns/service-000050/5", "10.9.9.2")}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_ = sink.Send(change[i%2])
				_ = sink.Send(Sync())
			}
		})
	}
}
