// SPDX-License-Identifier: Apache-2.0

package fullstate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	. "sigs.k8s.io/kpng/internal/localtest"
)

// FuzzOps sends whatever a batch off the wire can hold, then compares with a naive model of what is valid in it.
func FuzzOps(f *testing.F) {
	add := func(ops ...*localv1.OpItem) {
		raw, err := proto.Marshal(&localv1.OpBatch{Ops: slices.DeleteFunc(ops, func(op *localv1.OpItem) bool { return op == nil })})
		require.NoError(f, err)
		f.Add(raw)
	}
	add()
	add(Garbage()...)
	add(Reset(), svc("ns/a"), ep("ns/a/1", "1.0.0.1"), Sync(), Reset(), svc("ns/a-b"), ep("ns/a/1", "1.0.0.1"), Sync())
	add(svc("ns/a"), Sync(), Delete("ns/a"), ep("ns/a/1", "1.0.0.1"), Sync(), Reset(), Sync(), svc("ns/a"), ep("ns/a/1", "1.0.0.2"))
	add(Batch(svc("a/a"), Sync(), Batch(svc("b/b"))), Sync())
	f.Fuzz(func(t *testing.T, raw []byte) {
		batch := &localv1.OpBatch{}
		if proto.Unmarshal(raw, batch) != nil {
			return
		}
		sink := fullstate.New(nil)
		got := ""
		sink.Callback = fullstate.ArrayCallback(func(items []*fullstate.ServiceEndpoints) { got = paths(items) })
		m := model{}
		want := ""
		for _, op := range append(batch.Ops, Sync()) {
			require.NoError(t, sink.Send(op))
			for _, op := range flat(op) {
				if m.apply(op) {
					want = m.paths()
				}
			}
			require.Equal(t, want, got)
		}
	})
}

// flat unpacks a batch.
func flat(op *localv1.OpItem) []*localv1.OpItem {
	batch, ok := op.GetOp().(*localv1.OpItem_Batch)
	if !ok {
		return []*localv1.OpItem{op}
	}
	return slices.DeleteFunc(slices.Clone(batch.Batch.GetOps()), func(op *localv1.OpItem) bool {
		_, nested := op.GetOp().(*localv1.OpItem_Batch)
		return nested
	})
}

// paths renders items: the service's own words for itself, and the host names of its endpoints.
func paths(items []*fullstate.ServiceEndpoints) string {
	var b strings.Builder
	for _, item := range items {
		b.WriteString(item.Service.NamespacedName() + ":")
		for _, ep := range item.Endpoints {
			b.WriteString(ep.Hostname + strings.Join(ep.GetIPs().All(), "+") + ",")
		}
	}
	return b.String()
}

// model is the state as a map by path, without any cleverness.
type model map[string]proto.Message

func (m model) apply(op *localv1.OpItem) (synced bool) {
	valid := func(ref *localv1.Ref) bool {
		want := map[localv1.Set]int{localv1.Set_ServicesSet: 2, localv1.Set_EndpointsSet: 3}[ref.GetSet()]
		parts := strings.Split(ref.GetPath(), "/")
		return want == len(parts) && !slices.Contains(parts, "")
	}
	switch v := op.GetOp().(type) {
	case *localv1.OpItem_Set:
		if !valid(v.Set.GetRef()) {
			return false
		}
		var msg proto.Message = &localv1.Service{}
		if v.Set.Ref.Set == localv1.Set_EndpointsSet {
			msg = &localv1.Endpoint{}
		}
		if proto.Unmarshal(v.Set.Bytes, msg) == nil {
			m[v.Set.Ref.Path] = msg
		}
	case *localv1.OpItem_Delete:
		if valid(v.Delete) {
			delete(m, v.Delete.Path)
		}
	case *localv1.OpItem_Reset_:
		clear(m)
	case *localv1.OpItem_Sync:
		return true
	}
	return false
}

func (m model) paths() string {
	var items []*fullstate.ServiceEndpoints
	var names []string
	for path := range m {
		names = append(names, path)
	}
	slices.Sort(names)
	for _, path := range names {
		svc, ok := m[path].(*localv1.Service)
		if !ok {
			continue
		}
		item := &fullstate.ServiceEndpoints{Service: svc}
		for _, p := range names {
			if strings.HasPrefix(p, path+"/") {
				item.Endpoints = append(item.Endpoints, m[p].(*localv1.Endpoint))
			}
		}
		items = append(items, item)
	}
	return paths(items)
}
