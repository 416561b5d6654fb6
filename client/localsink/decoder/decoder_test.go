// SPDX-License-Identifier: Apache-2.0

package decoder_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/decoder"
	. "sigs.k8s.io/kpng/internal/localtest"
)

// backend notes what it is told.
type backend struct {
	localsink.Config
	calls []string
}

var _ decoder.Interface = &backend{}

func (b *backend) note(s string)                   { b.calls = append(b.calls, s) }
func (b *backend) Setup()                          { b.note("setup") }
func (b *backend) Reset()                          { b.note("reset") }
func (b *backend) Sync()                           { b.note("sync") }
func (b *backend) SetService(svc *localv1.Service) { b.note("set " + svc.NamespacedName()) }
func (b *backend) DeleteService(ns, name string)   { b.note("delete " + ns + " " + name) }
func (b *backend) DeleteEndpoint(ns, n, k string)  { b.note("delete " + ns + " " + n + " " + k) }
func (b *backend) SetEndpoint(ns, n, k string, ep *localv1.Endpoint) {
	b.note("set " + ns + " " + n + " " + k + " " + ep.IPs.First())
}

func TestDecoder(t *testing.T) {
	b := &backend{Config: localsink.Config{NodeName: "n"}}
	var sink localsink.Sink = decoder.New(b)
	node, err := sink.WaitRequest()
	require.NoError(t, err)
	require.Equal(t, "n", node)
	sink.Setup()
	sink.Reset()
	ops := []*localv1.OpItem{
		Reset(), SetService(Service("ns/a", "1.1.1.1", 1)), SetEndpoint("ns/a", "k", Endpoint("2.2.2.2")), Sync(),
		Delete("ns/a/k"), Delete("ns/a"), Sync(), Reset(), Reset(), Batch(Sync(), Reset()),
	}
	for _, op := range slices.Insert(ops, 3, Garbage()...) {
		require.NoError(t, sink.Send(op))
	}
	require.Equal(t, []string{
		"setup", "reset", // one reset: the op at the start of the stream says nothing new
		"set ns/a", "set ns a k 2.2.2.2", "sync",
		"delete ns a k", "delete ns a", "sync", "reset", "sync", "reset",
	}, b.calls)
}

func FuzzOps(f *testing.F) {
	for _, ops := range [][]*localv1.OpItem{
		{SetService(Service("ns/a", "1.1.1.1", 1)), SetEndpoint("ns/a", "k", Endpoint("2.2.2.2")), Sync(), Reset(), Delete("ns/a")},
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
		b := &backend{}
		sink := decoder.New(b)
		for _, op := range batch.Ops {
			require.NoError(t, sink.Send(op))
		}
		require.LessOrEqual(t, len(b.calls), count(batch.Ops), "an op made several calls")
	})
}

// count counts ops, those in batches too.
func count(ops []*localv1.OpItem) (n int) {
	for _, op := range ops {
		if batch, ok := op.GetOp().(*localv1.OpItem_Batch); ok {
			n += len(batch.Batch.GetOps())
		} else {
			n++
		}
	}
	return n
}
