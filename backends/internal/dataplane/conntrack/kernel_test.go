// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/conntrack"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
	"sigs.k8s.io/kpng/internal/netlab"
)

func TestMain(m *testing.M) {
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

// A client that keeps its port follows the service's targets; flows that are right are left.
func TestFlowsFollow(t *testing.T) {
	for _, protocol := range []dataplane.Protocol{dataplane.UDP, dataplane.Any} {
		for _, f := range nstest.Families {
			t.Run(f.Name(protocol.String()), func(t *testing.T) {
				t.Parallel()
				follow(t, nstest.New(t, 2), f, protocol)
			})
		}
	}
}

func follow(t *testing.T, l *nstest.Lab, f nstest.Family, protocol dataplane.Protocol) {
	const within = 5 * time.Second // mostly waiting for the two shared cores
	w, err := nftables.New(dataplane.Options{Owner: "kpng-test"})
	require.NoError(t, err)
	var held *dataplane.Service
	n1 := l.Nodes[0]
	removed := 0
	set := func(pods, draining []string) {
		t.Helper()
		s := serve(f, protocol, pods, draining)
		require.NoError(t, s.Validate())
		changes := []dataplane.Change{{Old: held, New: s}}
		require.NoError(t, n1.Do(func() error {
			if err := w.Apply(t.Context(), changes); err != nil {
				return err
			}
			n, err := conntrack.Cleaner{}.Clean(t.Context(), changes)
			removed = n
			return err
		}))
		held = s
	}
	require.NoError(t, n1.Do(func() error { return w.Replace(t.Context(), nil) }))

	d := l.SendDatagrams(t, "client", 40000, netip.AddrPortFrom(f.VIP(1), nstest.Port))
	set([]string{"n1-a"}, nil) // the flow was there before the service
	require.NoError(t, d.AnsweredBy("n1-a", within))
	set([]string{"n1-b"}, []string{"n1-a"})
	require.Zero(t, removed)
	require.NoError(t, d.AnsweredBy("n1-a", within), "a draining target keeps its flows")
	set([]string{"n1-b"}, nil)
	require.Equal(t, 1, removed)
	require.NoError(t, d.AnsweredBy("n1-b", within))
	set(nil, nil)
	require.NoError(t, d.Silent(within))
	set([]string{"n1-a"}, nil)
	require.NoError(t, d.AnsweredBy("n1-a", within))

	restart := func(s *dataplane.Service) (n int) {
		require.NoError(t, n1.Do(func() (err error) {
			if err = w.Replace(t.Context(), []*dataplane.Service{s}); err == nil {
				n, err = conntrack.Cleaner{}.CleanAll(t.Context(), []*dataplane.Service{s})
			}
			return err
		}))
		return n
	}
	require.Zero(t, restart(held), "a restart flushes nothing that is right")
	require.Equal(t, 1, restart(serve(f, protocol, []string{"n1-b"}, nil)), "the target went while nobody looked")
	require.NoError(t, d.AnsweredBy("n1-b", within))
}

func serve(f nstest.Family, protocol dataplane.Protocol, pods, draining []string) *dataplane.Service {
	targets := func(pods []string) (out []dataplane.Target) {
		for _, p := range pods {
			out = append(out, dataplane.Target{IP: f.Addr(p), Local: true})
		}
		return out
	}
	s := &dataplane.Service{Name: "ns/udp", Frontends: []dataplane.Frontend{{
		Kind: dataplane.ExternalIP, IP: f.VIP(1), Protocol: protocol,
		Pool: dataplane.Pool{Targets: targets(pods), Draining: targets(draining), Empty: dataplane.Drop},
	}}}
	if protocol != dataplane.Any {
		s.Frontends[0].Port = nstest.Port
	}
	s.Normalize()
	return s
}
