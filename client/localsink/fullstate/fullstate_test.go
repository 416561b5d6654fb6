// SPDX-License-Identifier: Apache-2.0

package fullstate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	. "sigs.k8s.io/kpng/internal/localtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder notes what a sink calls back with, one line a call: "ns/a=1.1.1.1,1.1.1.2 ns/b=".
type recorder struct {
	sink  *fullstate.Sink
	calls []string
}

func newRecorder() *recorder {
	r := &recorder{sink: fullstate.New(nil)}
	r.sink.Callback = fullstate.ArrayCallback(func(items []*fullstate.ServiceEndpoints) { r.calls = append(r.calls, text(items)) })
	return r
}

func text(items []*fullstate.ServiceEndpoints) string {
	all := make([]string, 0, len(items))
	for _, item := range items {
		ips := make([]string, 0, len(item.Endpoints))
		for _, ep := range item.Endpoints {
			ips = append(ips, strings.Join(ep.IPs.All(), "+"))
		}
		all = append(all, item.Service.NamespacedName()+"="+strings.Join(ips, ","))
	}
	return strings.Join(all, " ")
}

func (r *recorder) send(t *testing.T, ops ...*localv1.OpItem) {
	t.Helper()
	for _, op := range ops {
		require.NoError(t, r.sink.Send(op))
	}
}

// want checks the calls since the last check.
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

func TestPlainUse(t *testing.T) {
	r := newRecorder()
	r.sink.Setup()
	node, err := r.sink.WaitRequest()
	require.NoError(t, err)
	require.Empty(t, node)

	r.send(t, svc("test/nginx"), Sync())
	r.want(t, "test/nginx=")
	r.send(t, Sync())
	r.want(t, "test/nginx=")
	r.send(t, Delete("test/nginx"), Sync())
	r.want(t, "")
}

func TestLiteral(t *testing.T) {
	var got []string
	setup := 0
	sink := &fullstate.Sink{
		Config:    &localsink.Config{NodeName: "n"},
		Callback:  func(ch <-chan *fullstate.ServiceEndpoints) { got = append(got, (<-ch).Service.Name) },
		SetupFunc: func() { setup++ },
	}
	sink.Setup()
	sink.Reset()
	node, err := sink.WaitRequest()
	require.NoError(t, err)
	require.Equal(t, "n", node)
	require.NoError(t, sink.Send(svc("ns/a")))
	require.NoError(t, sink.Send(Sync()))
	require.Equal(t, []string{"a"}, got)
	require.Equal(t, 1, setup)

	silent := fullstate.New(nil)
	require.NoError(t, silent.Send(Sync()), "without a callback")
}

// The retired sink kept one tree by path, where "ns/a-b" sorts between "ns/a" and "ns/a/x".
func TestServicesWhoseNamesBeginAlike(t *testing.T) {
	r := newRecorder()
	r.send(t, svc("ns/a-b"), svc("ns/a"), svc("ns/a.c"), ep("ns/a/2", "1.0.0.2"), ep("ns/a-b/1", "2.0.0.1"), ep("ns/a/10", "1.0.0.10"), ep("ns/a.c/1", "3.0.0.1"), Sync())
	r.want(t, "ns/a=1.0.0.10,1.0.0.2 ns/a-b=2.0.0.1 ns/a.c=3.0.0.1")
	r.send(t, Delete("ns/a/10"), Delete("ns/a"), Delete("ns/a/2"), Sync())
	r.want(t, "ns/a-b=2.0.0.1 ns/a.c=3.0.0.1")
}

func TestLastOpOfASetCounts(t *testing.T) {
	r := newRecorder()
	r.send(t, svc("ns/a"), ep("ns/a/1", "1.0.0.1"), ep("ns/a/2", "1.0.0.2"), ep("ns/a/3", "1.0.0.3"), Sync())
	r.want(t, "ns/a=1.0.0.1,1.0.0.2,1.0.0.3")
	r.send(t, Delete("ns/a/1"), ep("ns/a/1", "1.0.0.9"), ep("ns/a/2", "9.9.9.9"), ep("ns/a/2", "1.0.0.2"), ep("ns/a/3", "9.9.9.9"), Delete("ns/a/3"), Sync())
	r.want(t, "ns/a=1.0.0.9,1.0.0.2")
	r.send(t, Delete("ns/a"), svc("ns/a"), Sync())
	r.want(t, "ns/a=1.0.0.9,1.0.0.2")
}

func TestReset(t *testing.T) {
	full := []*localv1.OpItem{svc("ns/a"), svc("ns/b"), ep("ns/a/1", "1.0.0.1"), ep("ns/b/1", "2.0.0.1")}
	const want = "ns/a=1.0.0.1 ns/b=2.0.0.1"
	for _, tc := range []struct {
		name   string
		broken []*localv1.OpItem // of the set that the reconnection breaks off
		resend []*localv1.OpItem
		want   []string
	}{
		{name: "the same", resend: full},
		{name: "the same in another order", resend: []*localv1.OpItem{ep("ns/b/1", "2.0.0.1"), svc("ns/b"), ep("ns/a/1", "1.0.0.1"), svc("ns/a")}},
		{name: "with a second Reset on the way", resend: append([]*localv1.OpItem{svc("ns/x"), Reset()}, full...)},
		{name: "nothing", want: []string{""}},
		{name: "less", resend: full[:3], want: []string{"ns/a=1.0.0.1 ns/b="}},
		{name: "a service less", resend: []*localv1.OpItem{full[0], full[2]}, want: []string{"ns/a=1.0.0.1"}},
		{name: "more", resend: append(full, svc("ns/c")), want: []string{want + " ns/c="}},
		{name: "another value", resend: append(full, ep("ns/a/1", "3.0.0.1")), want: []string{"ns/a=3.0.0.1 ns/b=2.0.0.1"}},
		{
			name:   "the same after half a set",
			broken: []*localv1.OpItem{svc("ns/c"), Delete("ns/a/1"), ep("ns/b/1", "9.9.9.9"), Delete("ns/b")},
			resend: full,
		},
		{
			name:   "what half a set had brought",
			broken: []*localv1.OpItem{ep("ns/a/1", "3.0.0.1")},
			resend: append(full, ep("ns/a/1", "3.0.0.1")),
			want:   []string{"ns/a=3.0.0.1 ns/b=2.0.0.1"},
		},
		{name: "half a set only", broken: []*localv1.OpItem{svc("ns/c")}, want: []string{""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRecorder()
			r.sink.Reset()
			r.send(t, append([]*localv1.OpItem{Reset()}, append(full, Sync())...)...)
			r.want(t, want)

			r.send(t, tc.broken...)
			r.sink.Reset()
			r.send(t, Reset())
			r.send(t, tc.resend...)
			require.Empty(t, r.calls, "called before the state was whole")
			r.send(t, Sync())
			r.want(t, tc.want...)

			// Later sets are on top of the resent state, and call back as ever.
			r.send(t, svc("ns/z"), Sync())
			require.Len(t, r.calls, 1)
			require.Contains(t, r.calls[0], "ns/z=")
		})
	}
}

func TestFirstSyncCallsAlsoWithNothing(t *testing.T) {
	r := newRecorder()
	r.sink.Reset()
	r.send(t, Reset(), Sync())
	r.want(t, "")
	r.send(t, Reset(), Sync())
	r.want(t)
}

// The order of a map on the wire means nothing.
func TestLabelsInAnotherOrderAreNoChange(t *testing.T) {
	label := func(k string) []byte {
		raw := SetService(&localv1.Service{Labels: map[string]string{k: "1"}})
		return raw.GetSet().Bytes
	}
	name := SetService(&localv1.Service{Namespace: "ns", Name: "a"}).GetSet().Bytes
	ab := append(append(append([]byte{}, name...), label("a")...), label("b")...)
	ba := append(append(append([]byte{}, name...), label("b")...), label("a")...)
	require.NotEqual(t, ab, ba)

	r := newRecorder()
	r.send(t, Reset(), Set("ns/a", ab), Sync())
	r.want(t, "ns/a=")
	r.send(t, Reset(), Set("ns/a", ba), Sync())
	r.want(t)
}

func TestGarbageIsSkipped(t *testing.T) {
	r := newRecorder()
	r.send(t, svc("ns/a"), ep("ns/a/1", "1.0.0.1"))
	r.send(t, Garbage()...)
	r.send(t, Batch(append(Garbage(), svc("ns/b"), Batch(svc("ns/nested")), nil)...))
	r.send(t, Sync())
	r.want(t, "ns/a=1.0.0.1 ns/b=")
}

func TestItemsBelongToTheCallback(t *testing.T) {
	sink := fullstate.New(nil)
	var kept []*fullstate.ServiceEndpoints
	calls := 0
	sink.Callback = fullstate.ArrayCallback(func(items []*fullstate.ServiceEndpoints) {
		calls++
		if kept == nil {
			kept = items
		}
		require.Equal(t, "ns/a=1.0.0.1,1.0.0.2 ns/b=2.0.0.1", text(items))
		first := items[0]
		first.Endpoints = append(first.Endpoints[:1], first.Endpoints[0], first.Endpoints[0])
		items[1].Service = nil
	})
	for _, op := range []*localv1.OpItem{svc("ns/a"), svc("ns/b"), ep("ns/a/1", "1.0.0.1"), ep("ns/a/2", "1.0.0.2"), ep("ns/b/1", "2.0.0.1"), Sync(), Sync()} {
		require.NoError(t, sink.Send(op))
	}
	require.Equal(t, 2, calls)
	require.Len(t, kept[0].Endpoints, 3)
}

func TestChannelNeedNotBeRead(t *testing.T) {
	sink := fullstate.New(nil)
	var later <-chan *fullstate.ServiceEndpoints
	sink.Callback = func(ch <-chan *fullstate.ServiceEndpoints) { later = ch }
	for _, op := range []*localv1.OpItem{svc("ns/a"), svc("ns/b"), Sync(), Delete("ns/a"), Delete("ns/b")} {
		require.NoError(t, sink.Send(op))
	}
	n := 0
	for range later {
		n++
	}
	require.Equal(t, 2, n)
}

func BenchmarkChange(b *testing.B) {
	for _, services := range []int{1000, 20000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			sink := fullstate.New(nil)
			sink.Callback = fullstate.ArrayCallback(func([]*fullstate.ServiceEndpoints) {})
			for i := range services {
				path := fmt.Sprintf("ns/service-%06d", i)
				_ = sink.Send(svc(path))
				for j := range 10 {
					_ = sink.Send(SetEndpoint(path, fmt.Sprint(j), Endpoint(fmt.Sprintf("10.1.%d.%d", i%256, j))))
				}
			}
			_ = sink.Send(Sync())
			change := []*localv1.OpItem{
				SetEndpoint("ns/service-000500", "5", Endpoint("10.9.9.1")),
				SetEndpoint("ns/service-000500", "5", Endpoint("10.9.9.2")),
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_ = sink.Send(change[i%2])
				_ = sink.Send(Sync())
			}
		})
	}
}
