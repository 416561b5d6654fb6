// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

func svc(protocol dataplane.Protocol, port uint16, pool dataplane.Pool) *dataplane.Service {
	return &dataplane.Service{Name: "ns/s", Frontends: []dataplane.Frontend{{
		Kind: dataplane.ExternalIP, IP: netip.MustParseAddr("203.0.113.1"), Protocol: protocol, Port: port, Pool: pool,
	}}}
}

func to(port uint16, addrs ...string) (out []dataplane.Target) {
	for _, a := range addrs {
		out = append(out, dataplane.Target{IP: netip.MustParseAddr(a), Port: port})
	}
	return out
}

func udp(from string, by string) flow {
	b := netip.MustParseAddrPort(by)
	return flow{protocol: 17, to: netip.MustParseAddrPort(from), by: b.Addr(), byPort: b.Port()}
}

func TestWrongFlows(t *testing.T) {
	const vip = "203.0.113.1:53"
	a, b, direct := udp(vip, "11.0.1.2:5353"), udp(vip, "11.0.1.3:5353"), udp(vip, vip)
	tcp := a
	tcp.protocol = 6
	elsewhere := udp("203.0.113.2:53", "11.0.1.2:5353")
	ping := flow{protocol: 1, to: netip.MustParseAddrPort("203.0.113.1:0"), by: netip.MustParseAddr("11.0.1.2")}
	pool := func(addrs ...string) dataplane.Pool { return dataplane.Pool{Targets: to(5353, addrs...)} }
	whole := func(addrs ...string) dataplane.Pool { return dataplane.Pool{Targets: to(0, addrs...)} }
	draining := pool("11.0.1.3")
	draining.Draining = to(5353, "11.0.1.2")
	type change = dataplane.Change
	both := svc(dataplane.UDP, 53, pool("11.0.1.2", "11.0.1.3"))
	onlyB := svc(dataplane.UDP, 53, pool("11.0.1.3"))
	for name, test := range map[string]struct {
		change  change
		restart bool
		wrong   []flow
		right   []flow
		idle    bool // the table need not be listed
	}{
		"target gone":       {change: change{Old: both, New: onlyB}, wrong: []flow{a, direct}, right: []flow{b, tcp, elsewhere}},
		"target more":       {change: change{Old: onlyB, New: both}, idle: true},
		"draining":          {change: change{Old: both, New: svc(dataplane.UDP, 53, draining)}, idle: true},
		"scaled to zero":    {change: change{Old: both, New: svc(dataplane.UDP, 53, pool())}, wrong: []flow{a, b}, right: []flow{direct}},
		"first target":      {change: change{Old: svc(dataplane.UDP, 53, pool()), New: onlyB}, wrong: []flow{a, direct}, right: []flow{b}},
		"new service":       {change: change{New: onlyB}, wrong: []flow{direct}, right: []flow{b, elsewhere}},
		"service gone":      {change: change{Old: both}, wrong: []flow{a, b}, right: []flow{direct}},
		"TCP":               {change: change{Old: svc(dataplane.TCP, 53, pool("11.0.1.2")), New: svc(dataplane.TCP, 53, pool("11.0.1.3"))}, idle: true},
		"any protocol":      {change: change{Old: svc(dataplane.Any, 0, whole("11.0.1.2")), New: svc(dataplane.Any, 0, whole("11.0.1.3"))}, wrong: []flow{ping, udp(vip, "11.0.1.2:53")}, right: []flow{udp(vip, "11.0.1.3:53"), tcp}},
		"restart":           {change: change{New: onlyB}, restart: true, wrong: []flow{a, direct}, right: []flow{b, tcp}},
		"restart with none": {change: change{New: svc(dataplane.UDP, 53, pool())}, restart: true, wrong: []flow{a}, right: []flow{direct, tcp}},
	} {
		t.Run(name, func(t *testing.T) {
			s := staleBy([]dataplane.Change{test.change}, test.restart)
			require.Equal(t, test.idle, s == nil)
			none := func(netip.Addr) bool { return false }
			for _, f := range test.wrong {
				require.True(t, s.wrong(&f, none), "%+v", f)
			}
			for _, f := range test.right {
				require.False(t, s.wrong(&f, none), "%+v", f)
			}
		})
	}
}

// A node port is at the node's own addresses only, and a frontend that moves to another Service keeps what it has there.
func TestWrongFlowsOfNodePortAndMove(t *testing.T) {
	np := func(addrs ...string) *dataplane.Service {
		s := svc(dataplane.UDP, 30053, dataplane.Pool{Targets: to(5353, addrs...)})
		s.Frontends[0].Kind, s.Frontends[0].IP = dataplane.NodePort, netip.IPv4Unspecified()
		return s
	}
	own := func(a netip.Addr) bool { return a == netip.MustParseAddr("172.31.0.1") }
	s := staleBy([]dataplane.Change{{Old: np("11.0.1.2"), New: np("11.0.1.3")}}, false)
	mine, other := udp("172.31.0.1:30053", "11.0.1.2:5353"), udp("172.31.0.2:30053", "11.0.1.2:5353")
	require.True(t, s.wrong(&mine, own))
	require.False(t, s.wrong(&other, own))

	from, next := svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(5353, "11.0.1.2")}), svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(5353, "11.0.1.2")})
	next.Name = "ns/next"
	moved := staleBy([]dataplane.Change{{Old: from}, {New: next}}, false)
	kept := udp("203.0.113.1:53", "11.0.1.2:5353")
	require.False(t, moved.wrong(&kept, own))
}
