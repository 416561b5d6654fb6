// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/conntrack"
	"sigs.k8s.io/kpng/internal/netlab"
)

// apply makes a change and removes the flows that it made wrong, as a backend does.
func apply(t *testing.T, l *Lab, w dataplane.Writer, old, next *dataplane.Service) {
	t.Helper()
	changes := []dataplane.Change{{Old: old, New: next}}
	require.NoError(t, w.Apply(t.Context(), changes))
	require.NoError(t, l.Host("n1").Do(func() error {
		_, err := conntrack.Cleaner{}.Clean(t.Context(), changes)
		return err
	}))
}

// TestClientsFollow has clients that never change their source port, so that to the kernel each is one connection for
// ever. They follow the service from pod to pod, to nowhere, and back.
func TestClientsFollow(t *testing.T) {
	t.Parallel()
	forEach(t, 2, func(t *testing.T, l *Lab, fl flavour) {
		w := fl.writer(t, l)
		require.NoError(t, w.Replace(t.Context(), nil))
		for _, f := range Families {
			all := func(pods ...string) *dataplane.Service { return f.allIP("all", 1, pods...) }
			port := func(pods ...string) *dataplane.Service {
				return f.service80("port", dataplane.LoadBalancerIP, f.VIP(2), pods...)
			}
			l.follow(t, w, netip.AddrPortFrom(f.VIP(1), Port), 5060, all)
			l.follow(t, w, netip.AddrPortFrom(f.VIP(2), 80), 5061, port)
		}
	})
}

// follow leads a service that exists in no form yet through its life.
func (l *Lab) follow(t *testing.T, w dataplane.Writer, to netip.AddrPort, from uint16, with func(pods ...string) *dataplane.Service) {
	t.Helper()
	datagrams := l.SendDatagrams(t, "client", from, to)
	defer datagrams.Close()
	bystander := l.SendDatagrams(t, "client", from+100, netip.AddrPortFrom(l.Addr("n1-a", to.Addr().Is6()), Port))
	defer bystander.Close()
	require.NoError(t, datagrams.Silent(time.Second))

	var now *dataplane.Service
	for _, pods := range [][]string{{"n1-a"}, {"n1-b"}, {"n2-a"}, {}, {"n1-b"}, nil, {"n1-a"}, {"n1-b"}} {
		var next *dataplane.Service
		if pods != nil {
			next = with(pods...)
		}
		apply(t, l, w, now, next)
		now = next
		if len(pods) == 0 {
			require.NoError(t, datagrams.Silent(time.Second), "to %s with %v", to, pods)
			continue
		}
		require.NoError(t, datagrams.AnsweredBy(pods[0], time.Second), "to %s", to)
		l.followPortless(t, to, pods[0])
	}
	require.NoError(t, bystander.AnsweredBy("n1-a", time.Second))
}

// followPortless asks the all-ip service in what has a fixed source port, or none at all. SCTP to a port is not asked:
// package conntrack is not told the ports of SCTP by the netlink library (v1.3.1), and leaves such flows as they are.
func (l *Lab) followPortless(t *testing.T, to netip.AddrPort, pod string) {
	t.Helper()
	if to.Port() != Port {
		return
	}
	asks := []netlab.Probe{{Network: GRE, To: to}}
	if !SCTPOfKernel() {
		asks = append(asks, netlab.Probe{Network: SCTP, To: to, From: netip.AddrPortFrom(netip.Addr{}, 5062)})
	}
	for _, q := range asks {
		a, err := l.Ask(t.Context(), "client", q)
		require.NoError(t, err)
		require.Equal(t, pod, a.Host, q.Network)
	}
}
