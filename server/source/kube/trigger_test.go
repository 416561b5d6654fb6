// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/server/serve"
	"sigs.k8s.io/kpng/server/store"
)

// triggered is a slice with the annotation of the controller.
func triggered(at string, addresses ...string) *discoveryv1.EndpointSlice {
	es := slice("a-1", "a", "", addresses...)
	es.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at}
	return es
}

func text(at time.Time) string { return at.Format(time.RFC3339Nano) }

// TestTriggerTimesReachTheBackend goes the whole way: API server, source, store, view, sink.
func TestTriggerTimesReachTheBackend(t *testing.T) {
	bothProtocols(t, func(t *testing.T, api *fakeAPI) {
		api.put(service("a", ""), triggered(text(time.Now()), "10.0.0.1"))
		r := synced(t, newConfig(api, ""))

		told := make(chan []changes.Change, 1)
		sink := changes.New(&localsink.Config{NodeName: "n1"}, func(list []changes.Change) error {
			told <- list
			return nil
		})
		sink.TriggerTimes = true
		ended := make(chan error, 1)
		go func() { ended <- serve.InProcess(t.Context(), r.st, sink, false) }()
		next := func() time.Time {
			t.Helper()
			select {
			case list := <-told:
				require.Len(t, list, 1)
				return list[0].TriggeredAt
			case err := <-ended:
				t.Fatalf("InProcess ended: %v", err)
			case <-time.After(deadline):
				t.Fatal("nothing is told")
			}
			return time.Time{}
		}
		require.Zero(t, next(), "the first whole state")

		first := time.Now()
		api.put(triggered(text(first), "10.0.0.1", "10.0.0.2"))
		require.True(t, first.Equal(next()))

		api.put(triggered(text(first), "10.0.0.1", "10.0.0.3"))
		require.Zero(t, next(), "somebody else changed the slice and left the annotation")

		api.put(triggered("yesterday", "10.0.0.4"))
		require.Zero(t, next())
		api.put(triggered(text(first.Add(-time.Hour)), "10.0.0.5"))
		require.Zero(t, next(), "older than the source: the slice was not selected until now")

		second := first.Add(time.Second)
		api.put(triggered(text(second.UTC()), "10.0.0.6"))
		require.True(t, second.Equal(next()))
		api.remove(triggered("", ""))
		require.Zero(t, next(), "the slice is gone")
	})
}

// TestTriggersOfOneCommit: of several changes of a slice that become one commit, the first counts.
func TestTriggersOfOneCommit(t *testing.T) {
	m, st := newMirror(0, 0), store.New()
	f := &feed{kind: sliceKind, keys: map[key]struct{}{}}
	m.set(f, sliceItem(slice("a-1", "a", "", "10.0.0.1")))
	m.commit(st)
	before := st.Snapshot()
	now := time.Now()
	say := func(at time.Time, addresses ...string) { m.set(f, sliceItem(triggered(text(at), addresses...))) }
	say(now.Add(2*time.Second), "10.0.0.2")
	say(now.Add(time.Second), "10.0.0.3")
	m.set(f, sliceItem(slice("a-1", "a", "", "10.0.0.4")))
	say(now.Add(3*time.Second), "10.0.0.5")
	m.commit(st)
	require.Equal(t, map[string]int64{"ns/a": now.Add(time.Second).UnixNano()}, st.Snapshot().Since(before).Triggers())

	before = st.Snapshot()
	say(now.Add(4*time.Second), "10.0.0.6")
	m.unset(f, key{"ns", "a-1"})
	m.commit(st)
	require.Empty(t, st.Snapshot().Since(before).Triggers(), "gone before it was told of")
}
