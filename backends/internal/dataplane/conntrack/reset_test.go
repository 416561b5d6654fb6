// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/conntrack"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
)

// TestResetTCP: a client whose target is gone is reset at once if anybody can tell it, and else goes on; without the
// option it goes on in any case. The target still lives here, so that it goes on is seen.
func TestResetTCP(t *testing.T) {
	refusing := func(s *dataplane.Service) *dataplane.Service {
		s.Frontends[0].Pool.Empty = dataplane.Reject
		return s
	}
	for _, test := range []struct {
		name  string
		next  func(nstest.Family) *dataplane.Service
		reset bool
	}{
		{"another target", func(f nstest.Family) *dataplane.Service { return serve(f, dataplane.TCP, []string{"n1-b"}, nil) }, true},
		{"refused", func(f nstest.Family) *dataplane.Service { return refusing(serve(f, dataplane.TCP, nil, nil)) }, true},
		{"dropped", func(f nstest.Family) *dataplane.Service { return serve(f, dataplane.TCP, nil, nil) }, false},
		{"draining", func(f nstest.Family) *dataplane.Service {
			return serve(f, dataplane.TCP, []string{"n1-b"}, []string{"n1-a"})
		}, false},
		{"gone", func(nstest.Family) *dataplane.Service { return nil }, false},
	} {
		for _, f := range nstest.Families {
			t.Run(f.Name(test.name), func(t *testing.T) {
				t.Parallel()
				l := nstest.New(t, 3)
				next := test.next(f)
				for _, from := range []string{"client", "n1-c", "n1", "n2-b"} {
					err := afterChange(t, l, from, serve(f, dataplane.TCP, []string{"n1-a"}, nil), next, conntrack.Cleaner{})
					require.NoError(t, err, from)
					err = afterChange(t, l, from, serve(f, dataplane.TCP, []string{"n1-a"}, nil), next, conntrack.Cleaner{ResetTCP: true})
					if test.reset {
						require.ErrorIs(t, err, syscall.ECONNRESET, from)
					} else {
						require.NoError(t, err, from)
					}
				}
			})
		}
	}
}

// afterChange is what ends the connection of a client, or nil if it goes on.
func afterChange(t *testing.T, l *nstest.Lab, from string, old, next *dataplane.Service, c conntrack.Cleaner) error {
	t.Helper()
	w, err := nftables.New(dataplane.Options{Owner: "kpng-test", ClusterCIDRs: nstest.ClusterCIDRs})
	require.NoError(t, err)
	n1 := l.Nodes[0]
	require.NoError(t, n1.Do(func() error { return w.Replace(t.Context(), []*dataplane.Service{old}) }))
	s := l.OpenStream(t.Context(), t, from, netip.AddrPortFrom(old.Frontends[0].IP, nstest.Port))
	require.Equal(t, "n1-a", s.Host)
	removed := 0
	require.NoError(t, n1.Do(func() (err error) {
		changes := []dataplane.Change{{Old: old, New: next}}
		if err = w.Apply(t.Context(), changes); err == nil {
			removed, err = c.Clean(t.Context(), changes)
		}
		return err
	}))
	if removed > 0 { // what earlier connections left is, too
		return s.Ended(5 * time.Second)
	}
	// Nothing was done to it: it lives if something that it says from now on comes back.
	load := s.Close()
	require.Zero(t, load.Lost())
	return load.Err
}
