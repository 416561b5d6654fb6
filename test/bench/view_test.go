// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
)

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	return b
}

func set(t *testing.T, set localv1.Set, path string, value proto.Message) *localv1.OpItem {
	return &localv1.OpItem{Op: &localv1.OpItem_Set{Set: &localv1.Value{
		Ref: &localv1.Ref{Set: set, Path: path}, Bytes: encode(t, value),
	}}}
}

func setService(t *testing.T, i int) *localv1.OpItem {
	return set(t, localv1.Set_ServicesSet, "bench/"+serviceName(i), &localv1.Service{Namespace: "bench", Name: serviceName(i)})
}

// setEndpoint is how an endpoint looks from node-0; change may make it look otherwise.
func setEndpoint(t *testing.T, w *world, service, endpoint, port int, change ...func(*localv1.Endpoint)) *localv1.OpItem {
	address := w.address(service, endpoint)
	ep := &localv1.Endpoint{
		IPs:           localv1.NewIPSet(addressText(address)),
		Local:         nodeOf(address) == 0,
		PortOverrides: []*localv1.PortName{{Name: "http", Port: int32(port)}},
		Scopes:        &localv1.EndpointScopes{Internal: true, External: true},
	}
	for _, c := range change {
		c(ep)
	}
	return set(t, localv1.Set_EndpointsSet, endpointPath(w, service, endpoint), ep)
}

func endpointPath(w *world, service, endpoint int) string {
	return "bench/" + serviceName(service) + "/" + addressText(w.address(service, endpoint))
}

func remove(set localv1.Set, path string) *localv1.OpItem {
	return &localv1.OpItem{Op: &localv1.OpItem_Delete{Delete: &localv1.Ref{Set: set, Path: path}}}
}

var (
	resetOp = &localv1.OpItem{Op: &localv1.OpItem_Reset_{Reset_: &localv1.EmptyOp{}}}
	syncOp  = &localv1.OpItem{Op: &localv1.OpItem_Sync{Sync: &localv1.EmptyOp{}}}
)

// whole is the first change set of a world of one Service with three endpoints.
func whole(t *testing.T, w *world) []*localv1.OpItem {
	ops := []*localv1.OpItem{resetOp, setService(t, 0)}
	for j := range 3 {
		ops = append(ops, setEndpoint(t, w, 0, j, basePort))
	}
	return append(ops, syncOp)
}

// TestViewFollows: what is right is taken, in batches or not, and adds up to the model's state.
func TestViewFollows(t *testing.T) {
	for _, batch := range []bool{true, false} {
		w := newWorld(1, 3)
		v := newView(w, 0)
		ops := whole(t, w)
		require.NoError(t, feed(t, v, batch, ops...))
		require.Equal(t, w.expected(), v.total)

		_, total := w.toggle(0, 1)
		require.NotEqual(t, v.total, total)
		require.NoError(t, feed(t, v, batch, remove(localv1.Set_EndpointsSet, endpointPath(w, 0, 1)), syncOp))
		require.Equal(t, total, v.total)

		require.NoError(t, feed(t, v, batch, ops[:3]...))
		require.NotEqual(t, total, v.total, "a reset forgets")
	}
}

// TestViewRefuses: each fault that a server could have is found.
func TestViewRefuses(t *testing.T) {
	w := newWorld(1, 3)
	for name, ops := range map[string][]*localv1.OpItem{
		"orphan":                          {setEndpoint(t, w, 0, 0, basePort)},
		"not how":                         append(whole(t, w), setEndpoint(t, w, 0, 0, basePort, func(ep *localv1.Endpoint) { ep.Local = !ep.Local })),
		"not how node-0 sees it":          append(whole(t, w), setEndpoint(t, w, 0, 0, basePort, func(ep *localv1.Endpoint) { ep.Scopes = nil })),
		"torn":                            append(whole(t, w), setEndpoint(t, w, 0, 0, basePort+1), syncOp),
		"never had":                       {resetOp, setService(t, 0), setEndpoint(t, w, 0, 0, basePort), syncOp},
		"was not there":                   append(whole(t, w), remove(localv1.Set_EndpointsSet, "bench/svc-000000/x")),
		"is deleted: known":               append(whole(t, w), remove(localv1.Set_ServicesSet, "bench/svc-000000")),
		"unknown path":                    {set(t, localv1.Set_ServicesSet, "other/name", &localv1.Service{})},
		"unknown path \"bench/svc-000001": {setService(t, 1)},
		"op of unknown kind":              {{Op: &localv1.OpItem_Batch{Batch: &localv1.OpBatch{Ops: []*localv1.OpItem{{}}}}}},
		"an op follows Sync":              {{Op: &localv1.OpItem_Batch{Batch: &localv1.OpBatch{Ops: []*localv1.OpItem{resetOp, syncOp, resetOp}}}}},
		"endpoint bench/svc-0":            append(whole(t, w), set(t, localv1.Set_EndpointsSet, endpointPath(w, 0, 0), &localv1.Endpoint{Hostname: "a"})),
	} {
		require.ErrorContains(t, feed(t, newView(w, 0), false, ops...), name)
	}
}

// feed hands ops to a view as a server would send them.
func feed(t *testing.T, v *view, batch bool, ops ...*localv1.OpItem) error {
	if batch {
		ops = []*localv1.OpItem{{Op: &localv1.OpItem_Batch{Batch: &localv1.OpBatch{Ops: ops}}}}
	}
	for _, op := range ops {
		if _, err := v.message(encode(t, op)); err != nil {
			return err
		}
	}
	return nil
}

// FuzzView: whatever a server sends, a watcher does not crash.
func FuzzView(f *testing.F) {
	f.Add([]byte{0x0a, 0x00})
	f.Add([]byte{0x12, 0x04, 0x0a, 0x02, 0x08, 0x01})
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = newView(newWorld(1, 3), 0).message(b)
	})
}
