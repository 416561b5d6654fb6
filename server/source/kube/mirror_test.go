// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/server/store"
)

// What several feeds say of one slice, in any order in which their streams may bring it.
func TestSliceKnownToTwoFeeds(t *testing.T) {
	type step func(m *mirror, a, b *feed)
	say := func(of func(a, b *feed) *feed, version int, address string) step {
		return func(m *mirror, a, b *feed) {
			es := slice("s-1", "s", "", address)
			es.ResourceVersion = strconv.Itoa(version)
			m.set(of(a, b), sliceItem(es))
		}
	}
	drop := func(of func(a, b *feed) *feed) step {
		return func(m *mirror, a, b *feed) { m.unset(of(a, b), key{"ns", "s-1"}) }
	}
	first := func(a, _ *feed) *feed { return a }
	second := func(_, b *feed) *feed { return b }

	for _, tc := range []struct {
		name  string
		steps []step
		want  []string // the state after each step
	}{
		{"learned before it is dropped",
			[]step{say(first, 1, "10.0.0.1"), say(second, 2, "10.0.0.2"), drop(first)},
			[]string{"(ns/s) 10.0.0.1", "(ns/s) 10.0.0.2", "(ns/s) 10.0.0.2"}},
		{"the first is behind",
			[]step{say(second, 3, "10.0.0.3"), say(first, 1, "10.0.0.1"), say(first, 2, "10.0.0.2"), drop(first)},
			[]string{"(ns/s) 10.0.0.3", "(ns/s) 10.0.0.3", "(ns/s) 10.0.0.3", "(ns/s) 10.0.0.3"}},
		{"dropped by both",
			[]step{say(first, 1, "10.0.0.1"), say(second, 1, "10.0.0.1"), drop(second), drop(second), drop(first), drop(first)},
			[]string{"(ns/s) 10.0.0.1", "(ns/s) 10.0.0.1", "(ns/s) 10.0.0.1", "(ns/s) 10.0.0.1", "", ""}},
		{"the feed stops",
			[]step{say(first, 1, "10.0.0.1"), func(m *mirror, a, _ *feed) { m.stop(a) }, say(first, 2, "10.0.0.2")},
			[]string{"(ns/s) 10.0.0.1", "", ""}},
		{"one of two feeds stops",
			[]step{say(first, 1, "10.0.0.1"), say(second, 1, "10.0.0.1"), func(m *mirror, a, _ *feed) { m.stop(a) }},
			[]string{"(ns/s) 10.0.0.1", "(ns/s) 10.0.0.1", "(ns/s) 10.0.0.1"}},
		{"one feed alone may go back in time: a cluster was restored from a backup",
			[]step{say(first, 9, "10.0.0.9"), say(first, 1, "10.0.0.1")},
			[]string{"(ns/s) 10.0.0.9", "(ns/s) 10.0.0.1"}},
		{"a relist without it",
			[]step{say(first, 1, "10.0.0.1"), say(second, 1, "10.0.0.1"),
				func(m *mirror, a, _ *feed) { m.replace(a, nil) }, func(m *mirror, _, b *feed) { m.replace(b, nil) }},
			[]string{"(ns/s) 10.0.0.1", "(ns/s) 10.0.0.1", "(ns/s) 10.0.0.1", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMirror(0, 0)
			r := &running{st: store.New()}
			a := &feed{kind: sliceKind, keys: map[key]struct{}{}}
			b := &feed{kind: sliceKind, keys: map[key]struct{}{}}
			for i, step := range tc.steps {
				step(m, a, b)
				m.commit(r.st)
				require.Equal(t, tc.want[i], r.state(), "after step %d", i+1)
			}
			if tc.want[len(tc.want)-1] == "" {
				require.Empty(t, m.held[sliceKind], "nothing is remembered of what is gone")
			}
		})
	}
}
