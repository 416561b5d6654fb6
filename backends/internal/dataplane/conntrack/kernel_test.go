// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack_test

import (
	"context"
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

// client always asks from the same source, so that to the kernel it is one connection for ever.
type client interface {
	AnsweredBy(name string, within time.Duration) error
	Silent(within time.Duration) error
}

// asker asks once at a time, in a protocol that nstest has no other client for.
type asker struct {
	t *testing.T
	*nstest.Lab
	netlab.Probe
}

func (a asker) AnsweredBy(name string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(a.t.Context(), within)
	defer cancel()
	answer, err := a.Ask(ctx, "client", a.Probe)
	if err == nil && answer.Host != name {
		err = fmt.Errorf("answered by %s, want %s", answer.Host, name)
	}
	return err
}

func (a asker) Silent(time.Duration) error {
	ctx, cancel := context.WithTimeout(a.t.Context(), nstest.Silence)
	defer cancel()
	if answer, err := a.Ask(ctx, "client", a.Probe); err == nil {
		return fmt.Errorf("answered by %s, want silence", answer.Host)
	}
	return nil
}

// TestFlowsFollow: a client that keeps its source follows the service's targets; flows that are right are left.
func TestFlowsFollow(t *testing.T) {
	for _, test := range []struct {
		protocol dataplane.Protocol
		network  string
	}{
		{dataplane.UDP, nstest.UDP}, {dataplane.SCTP, nstest.SCTP},
		{dataplane.Any, nstest.UDP}, {dataplane.Any, nstest.SCTP}, {dataplane.Any, nstest.ICMP}, {dataplane.Any, nstest.GRE},
	} {
		for _, f := range nstest.Families {
			t.Run(f.Name(test.protocol.String()+"-"+test.network), func(t *testing.T) {
				t.Parallel()
				if test.network == nstest.SCTP && nstest.SCTPOfKernel() {
					t.Skip("the kernel speaks SCTP, and would take what the raw sockets of the lab say for its own")
				}
				follow(t, nstest.New(t, 2), f, test.protocol, test.network)
			})
		}
	}
}

func clientOf(t *testing.T, l *nstest.Lab, network string, to netip.AddrPort) client {
	if network == nstest.UDP {
		return l.SendDatagrams(t, "client", 40000, to)
	}
	return asker{t, l, netlab.Probe{Network: network, From: netip.AddrPortFrom(netip.Addr{}, 40000), To: to}}
}

func follow(t *testing.T, l *nstest.Lab, f nstest.Family, protocol dataplane.Protocol, network string) {
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

	d := clientOf(t, l, network, netip.AddrPortFrom(f.VIP(1), nstest.Port))
	require.NoError(t, d.Silent(within))
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

	restart := func(c conntrack.Cleaner, services ...*dataplane.Service) (n int) {
		require.NoError(t, n1.Do(func() (err error) {
			if err = w.Replace(t.Context(), services); err == nil {
				n, err = c.CleanAll(t.Context(), services)
			}
			return err
		}))
		return n
	}
	ours := conntrack.Cleaner{OwnConnMark: dataplane.DefaultConnMark}
	require.Zero(t, restart(conntrack.Cleaner{}, held), "a restart flushes nothing that is right")
	require.Zero(t, restart(ours, held), "nor does it if it knows its own flows")
	require.Equal(t, 1, restart(conntrack.Cleaner{}, serve(f, protocol, []string{"n1-b"}, nil)), "the target went while nobody looked")
	require.NoError(t, d.AnsweredBy("n1-b", within))
	require.Zero(t, restart(conntrack.Cleaner{}), "the service went while nobody looked: it may be another backend's")
	require.Equal(t, 1, restart(ours), "which it cannot be")
	require.NoError(t, d.Silent(within))
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
