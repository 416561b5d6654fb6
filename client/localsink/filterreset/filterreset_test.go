// SPDX-License-Identifier: Apache-2.0

package filterreset_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/filterreset"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	. "sigs.k8s.io/kpng/internal/localtest"
)

// inner notes what gets through, and fails on what it is told to fail on.
type inner struct {
	localsink.Config
	calls []string
	fail  map[string]error
}

func (s *inner) Setup() { s.calls = append(s.calls, "setup") }
func (s *inner) Reset() { s.calls = append(s.calls, "reset") }

func (s *inner) Send(op *localv1.OpItem) error {
	call := ""
	switch v := op.GetOp().(type) {
	case *localv1.OpItem_Set:
		call = fmt.Sprintf("set %s %d", v.Set.Ref.Path, len(v.Set.Bytes))
	case *localv1.OpItem_Delete:
		call = "delete " + v.Delete.Path
	case *localv1.OpItem_Sync:
		call = "sync"
	default:
		call = fmt.Sprintf("%T", v)
	}
	if err := s.fail[call]; err != nil {
		return err
	}
	s.calls = append(s.calls, call)
	return nil
}

func (s *inner) take() []string {
	defer func() { s.calls = nil }()
	return s.calls
}

func set(path string, size int) *localv1.OpItem { return Set(path, []byte(strings.Repeat("x", size))) }

// TestTriggerTimesGetThrough: and are no difference by themselves.
func TestTriggerTimesGetThrough(t *testing.T) {
	var got []int64
	sink := filterreset.New(sender(func(op *localv1.OpItem) { got = append(got, op.TriggeredAt) }))
	first, again, gone := set("ns/a/1", 3), set("ns/a/1", 3), Delete("ns/a/1")
	first.TriggeredAt, again.TriggeredAt, gone.TriggeredAt = 5, 6, 7
	send(t, sink, first, again, gone)
	require.Equal(t, []int64{5, 7}, got)
}

// sender is a sink that only looks at ops.
type sender func(op *localv1.OpItem)

func (f sender) Setup()                        {}
func (f sender) Reset()                        {}
func (f sender) WaitRequest() (string, error)  { return "", nil }
func (f sender) Send(op *localv1.OpItem) error { f(op); return nil }

func send(t *testing.T, sink localsink.Sink, ops ...*localv1.OpItem) {
	t.Helper()
	for _, op := range ops {
		require.NoError(t, sink.Send(op))
	}
}

func TestResendBecomesADifference(t *testing.T) {
	in := &inner{Config: localsink.Config{NodeName: "n"}}
	sink := filterreset.New(in)
	sink.Setup()
	node, err := sink.WaitRequest()
	require.NoError(t, err)
	require.Equal(t, "n", node)

	sink.Reset()
	send(t, sink, Reset(), set("ns/a", 1), set("ns/b", 1), set("ns/a/1", 1), set("ns/b/1", 1), set("ns/b/2", 1), Sync())
	require.Equal(t, []string{"setup", "set ns/a 1", "set ns/b 1", "set ns/a/1 1", "set ns/b/1 1", "set ns/b/2 1", "sync"}, in.take())

	send(t, sink, set("ns/a", 1), Delete("ns/none"), Delete("ns/a/none"), Sync())
	require.Equal(t, []string{"sync"}, in.take(), "what is known already")

	send(t, sink, set("ns/c", 1), Delete("ns/a/1"), set("ns/b/1", 2)) // broken off
	require.Equal(t, []string{"set ns/c 1", "delete ns/a/1", "set ns/b/1 2"}, in.take())
	sink.Reset()
	send(t, sink, Reset(), set("ns/a", 1), set("ns/d", 1), set("ns/a/1", 1), Sync())
	require.Equal(t, []string{"set ns/d 1", "set ns/a/1 1", "delete ns/b/1", "delete ns/b/2", "delete ns/b", "delete ns/c", "sync"}, in.take())

	sink.Reset()
	send(t, sink, Reset(), set("ns/a", 1), Reset(), set("ns/d", 1), Batch(set("ns/a/1", 1), Sync()))
	require.Equal(t, []string{"delete ns/a", "sync"}, in.take(), "the second Reset began the resend anew")
}

// The same path in two sets is two values.
func TestSetsAreApart(t *testing.T) {
	in := &inner{}
	sink := filterreset.New(in)
	global := func(s localv1.Set) *localv1.OpItem {
		return &localv1.OpItem{Op: &localv1.OpItem_Set{Set: &localv1.Value{Ref: &localv1.Ref{Set: s, Path: "ns/a"}, Bytes: []byte("x")}}}
	}
	send(t, sink, global(localv1.Set_ServicesSet), global(localv1.Set_GlobalServiceInfos), global(localv1.Set_GlobalNodeInfos))
	require.Len(t, in.take(), 3)
	send(t, sink, Reset(), global(localv1.Set_GlobalServiceInfos), Sync())
	require.Equal(t, []string{"delete ns/a", "delete ns/a", "sync"}, in.take())
}

func TestErrors(t *testing.T) {
	no := errors.New("no")
	in := &inner{fail: map[string]error{"set ns/a 1": no, "delete ns/b": no}}
	sink := filterreset.New(in)
	require.ErrorIs(t, sink.Send(set("ns/a", 1)), no)
	send(t, sink, set("ns/b", 1), set("ns/c", 1), Sync())
	require.Equal(t, []string{"set ns/b 1", "set ns/c 1", "sync"}, in.take())

	in.fail["set ns/a 1"] = nil
	send(t, sink, Reset(), set("ns/a", 1))
	require.Equal(t, []string{"set ns/a 1"}, in.take(), "a set that failed is sent again")
	require.ErrorIs(t, sink.Send(Sync()), no)
	require.Equal(t, []string{"delete ns/c", "sync"}, in.take(), "one failure does not keep the rest")

	in.fail = map[string]error{"delete ns/a": localsink.ErrStop}
	require.NoError(t, sink.Send(Reset()))
	require.ErrorIs(t, sink.Send(Sync()), localsink.ErrStop)
	require.Empty(t, in.take())
}

func TestGarbageIsSkipped(t *testing.T) {
	in := &inner{}
	sink := filterreset.New(in)
	for _, op := range Garbage() {
		require.NoError(t, sink.Send(op))
	}
	for _, call := range in.take() {
		parts := strings.Split(strings.Fields(call)[1], "/")
		require.NotContains(t, parts, "", call)
		require.LessOrEqual(t, len(parts), 3)
	}
}

// A sink behind filterreset ends with the same state as one that is fed directly. (Values that do not decode are left
// out: resent in the place of a good one, filterreset leaves the good one standing, as it does not decode.)
func FuzzOps(f *testing.F) {
	svc := func(path string) *localv1.OpItem { return SetService(Service(path, "1.1.1.1", 1)) }
	for _, ops := range [][]*localv1.OpItem{
		{svc("ns/a"), SetEndpoint("ns/a", "1", Endpoint("1.0.0.1")), Sync(), Reset(), svc("ns/a"), Sync()},
		{svc("ns/a"), Sync(), Reset(), svc("ns/b"), Reset(), svc("ns/c"), Delete("ns/c"), Sync()},
		slices.DeleteFunc(Garbage(), func(op *localv1.OpItem) bool { return op == nil }),
	} {
		raw, err := proto.Marshal(&localv1.OpBatch{Ops: ops})
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		batch := &localv1.OpBatch{}
		if proto.Unmarshal(raw, batch) != nil {
			return
		}
		render := func(into *string) *fullstate.Sink {
			sink := fullstate.New(nil)
			sink.Callback = fullstate.ArrayCallback(func(items []*fullstate.ServiceEndpoints) {
				*into = ""
				for _, item := range items {
					*into += fmt.Sprint(item.Service.GetName(), len(item.Endpoints), ";")
				}
			})
			return sink
		}
		var direct, filtered string
		sinks := []localsink.Sink{render(&direct), filterreset.New(render(&filtered))}
		comparable := true
		for _, op := range append(batch.Ops, Sync()) {
			comparable = comparable && decodes(op)
			for _, sink := range sinks {
				require.NoError(t, sink.Send(op))
			}
			if comparable {
				require.Equal(t, direct, filtered)
			}
		}
	})
}

func decodes(op *localv1.OpItem) bool {
	switch v := op.GetOp().(type) {
	case *localv1.OpItem_Set:
		return proto.Unmarshal(v.Set.GetBytes(), &localv1.Service{}) == nil && proto.Unmarshal(v.Set.GetBytes(), &localv1.Endpoint{}) == nil
	case *localv1.OpItem_Batch:
		return !slices.ContainsFunc(v.Batch.GetOps(), func(op *localv1.OpItem) bool { return !decodes(op) })
	default:
		return true
	}
}

func BenchmarkMemory(b *testing.B) {
	const n = 200000
	for b.Loop() {
		sink := filterreset.New(discard{})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range n {
			_ = sink.Send(SetEndpoint("namespace/service", fmt.Sprintf("service-name-abcde-%d", i), Endpoint("10.0.0.1")))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "heap-B/value")
		runtime.KeepAlive(sink)
	}
}

type discard struct{ localsink.Config }

func (discard) WaitRequest() (string, error) { return "", nil }
func (discard) Setup()                       {}
func (discard) Reset()                       {}
func (discard) Send(_ *localv1.OpItem) error { return nil }
