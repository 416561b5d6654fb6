// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/conntrack"
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
			node := func(pods ...string) *dataplane.Service {
				s := f.service80("node", dataplane.NodePort, f.Any(), pods...)
				for i := range s.Frontends {
					s.Frontends[i].Port, s.Frontends[i].Masquerade = 30080, dataplane.NonLocal
				}
				return s
			}
			l.follow(t, w, netip.AddrPortFrom(f.Addr("n1"), 30080), 5063, node)
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
			l.Check(t, keepers(to, Want{Fail: anyFailure}))
			continue
		}
		require.NoError(t, datagrams.AnsweredBy(pods[0], time.Second), "to %s", to)
		l.Check(t, keepers(to, by(l.sourceAt(pods[0], to), pods[0])))
	}
	require.NoError(t, bystander.AnsweredBy("n1-a", time.Second))
}

// sourceAt is the client address that a pod sees: its own, but this node's where the pod is elsewhere.
func (l *Lab) sourceAt(pod string, to netip.AddrPort) netip.Addr {
	from := "client"
	if strings.HasPrefix(pod, "n2") {
		from = "n1"
	}
	return l.Addr(from, to.Addr().Is6())
}

// keepers ask in what else has a fixed source, of which the kernel makes one connection: a port, an identifier, or
// nothing but the addresses.
func keepers(to netip.AddrPort, want Want) []Check {
	from := netip.AddrPortFrom(netip.Addr{}, 5062)
	var checks []Check
	if to.Port() == Port { // the all-ip service
		checks = append(checks, ask("client", GRE, to.Addr(), 0, want), ask("client", ICMP, to.Addr(), 0, want))
	}
	if !SCTPOfKernel() && to.Port() < 30000 { // n1 itself answers SCTP to any port
		checks = append(checks, ask("client", SCTP, to.Addr(), to.Port(), want))
	}
	for i := range checks {
		checks[i].Probe.From = from
	}
	return checks
}
