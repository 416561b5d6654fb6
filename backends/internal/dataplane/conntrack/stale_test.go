// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack

import (
	"net/netip"
	"slices"
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
	return flow{protocol: 17, to: netip.MustParseAddrPort(from), by: b.Addr(), byPort: b.Port(), dnat: from != by}
}

func TestWrongFlows(t *testing.T) {
	const vip = "203.0.113.1:53"
	a, b, direct := udp(vip, "11.0.1.2:5353"), udp(vip, "11.0.1.3:5353"), udp(vip, vip)
	tcp, tcpToB, tcpDirect := a, b, direct
	tcp.protocol, tcpToB.protocol, tcpDirect.protocol = 6, 6, 6
	elsewhere := udp("203.0.113.2:53", "11.0.1.2:5353")
	ping := flow{protocol: 1, to: netip.MustParseAddrPort("203.0.113.1:0"), by: netip.MustParseAddr("11.0.1.2"), dnat: true}
	pool := func(addrs ...string) dataplane.Pool { return dataplane.Pool{Targets: to(5353, addrs...)} }
	whole := func(addrs ...string) dataplane.Pool { return dataplane.Pool{Targets: to(0, addrs...)} }
	draining := pool("11.0.1.3")
	draining.Draining = to(5353, "11.0.1.2")
	type change = dataplane.Change
	both := svc(dataplane.UDP, 53, pool("11.0.1.2", "11.0.1.3"))
	onlyB := svc(dataplane.UDP, 53, pool("11.0.1.3"))
	tcpBoth, tcpB := svc(dataplane.TCP, 53, pool("11.0.1.2", "11.0.1.3")), svc(dataplane.TCP, 53, pool("11.0.1.3"))
	for name, test := range map[string]struct {
		change  change
		restart bool
		tcp     bool
		wrong   []flow
		right   []flow
		idle    bool // the table need not be listed
	}{
		"target gone":                    {change: change{Old: both, New: onlyB}, wrong: []flow{a, direct}, right: []flow{b, tcp, elsewhere}},
		"target more":                    {change: change{Old: onlyB, New: both}, idle: true},
		"draining":                       {change: change{Old: both, New: svc(dataplane.UDP, 53, draining)}, idle: true},
		"scaled to zero":                 {change: change{Old: both, New: svc(dataplane.UDP, 53, pool())}, wrong: []flow{a, b}, right: []flow{direct}},
		"first target":                   {change: change{Old: svc(dataplane.UDP, 53, pool()), New: onlyB}, wrong: []flow{a, direct}, right: []flow{b}},
		"new service":                    {change: change{New: onlyB}, wrong: []flow{direct}, right: []flow{b, elsewhere}},
		"service gone":                   {change: change{Old: both}, wrong: []flow{a, b}, right: []flow{direct}},
		"TCP":                            {change: change{Old: svc(dataplane.TCP, 53, pool("11.0.1.2")), New: svc(dataplane.TCP, 53, pool("11.0.1.3"))}, idle: true},
		"any protocol":                   {change: change{Old: svc(dataplane.Any, 0, whole("11.0.1.2")), New: svc(dataplane.Any, 0, whole("11.0.1.3"))}, wrong: []flow{ping, udp(vip, "11.0.1.2:53")}, right: []flow{udp(vip, "11.0.1.3:53"), tcp}},
		"reset TCP, target gone":         {tcp: true, change: change{Old: tcpBoth, New: tcpB}, wrong: []flow{tcp}, right: []flow{tcpToB, tcpDirect, a}},
		"reset TCP, first target":        {tcp: true, change: change{Old: svc(dataplane.TCP, 53, pool()), New: tcpB}, idle: true},
		"reset TCP, draining":            {tcp: true, change: change{Old: tcpBoth, New: svc(dataplane.TCP, 53, draining)}, idle: true},
		"reset TCP, any protocol":        {tcp: true, change: change{Old: svc(dataplane.Any, 0, whole("11.0.1.2")), New: svc(dataplane.Any, 0, whole("11.0.1.3"))}, wrong: []flow{tcp, ping, direct}, right: []flow{tcpToB, tcpDirect}},
		"reset TCP, nobody would answer": {tcp: true, change: change{Old: tcpBoth, New: svc(dataplane.TCP, 53, dataplane.Pool{Empty: dataplane.Drop})}, idle: true},
		"reset TCP, refused":             {tcp: true, change: change{Old: tcpBoth, New: svc(dataplane.TCP, 53, pool())}, wrong: []flow{tcp, tcpToB}, right: []flow{tcpDirect, a}},
		"reset TCP, service gone":        {tcp: true, change: change{Old: tcpBoth}, idle: true},
		"reset TCP, address gone":        {tcp: true, change: change{Old: svc(dataplane.Any, 0, whole("11.0.1.2"))}, wrong: []flow{ping}, right: []flow{tcp}},
		"reset TCP, restart":             {tcp: true, restart: true, change: change{New: tcpB}, wrong: []flow{tcp}, right: []flow{tcpToB, tcpDirect}},
		"restart":                        {change: change{New: onlyB}, restart: true, wrong: []flow{a, direct}, right: []flow{b, tcp}},
		"restart with none":              {change: change{New: svc(dataplane.UDP, 53, pool())}, restart: true, wrong: []flow{a}, right: []flow{direct, tcp}},
	} {
		t.Run(name, func(t *testing.T) {
			s := staleBy([]dataplane.Change{test.change}, rule{restart: test.restart, tcp: test.tcp})
			require.Equal(t, test.idle, s == nil)
			if s == nil {
				return
			}
			s.own = func(netip.Addr) bool { return false }
			for _, f := range test.wrong {
				require.True(t, s.wrong(&f), "%+v", f)
			}
			for _, f := range test.right {
				require.False(t, s.wrong(&f), "%+v", f)
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
	s := staleBy([]dataplane.Change{{Old: np("11.0.1.2"), New: np("11.0.1.3")}}, rule{})
	s.own = own
	mine, other := udp("172.31.0.1:30053", "11.0.1.2:5353"), udp("172.31.0.2:30053", "11.0.1.2:5353")
	require.True(t, s.wrong(&mine))
	require.False(t, s.wrong(&other))

	for _, tcp := range []bool{false, true} {
		// In either order, and TCP as well.
		from, next := svc(dataplane.TCP, 53, dataplane.Pool{Targets: to(5353, "11.0.1.2")}), svc(dataplane.TCP, 53, dataplane.Pool{Targets: to(5353, "11.0.1.3")})
		next.Name = "ns/next"
		changes := []dataplane.Change{{Old: from}, {New: next}}
		for range 2 {
			s := staleBy(changes, rule{tcp: tcp})
			require.Equal(t, tcp, s != nil)
			if old := udp("203.0.113.1:53", "11.0.1.2:5353"); tcp {
				old.protocol = 6
				require.True(t, s.wrong(&old))
			}
			slices.Reverse(changes)
		}
	}

	from, next := svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(5353, "11.0.1.2")}), svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(5353, "11.0.1.2")})
	next.Name = "ns/next"
	moved := staleBy([]dataplane.Change{{Old: from}, {New: next}}, rule{})
	moved.own = own
	kept := udp("203.0.113.1:53", "11.0.1.2:5353")
	require.False(t, moved.wrong(&kept))
}

// TestOwnMark: what nobody explains is wrong only if it is ours beyond doubt.
func TestOwnMark(t *testing.T) {
	const ours = 0x1000
	with := func(f flow, mark uint32) flow { f.mark = mark; return f }
	gone, kept := udp("203.0.113.9:53", "11.0.1.2:53"), udp("203.0.113.1:53", "11.0.1.2:5353")
	changes := []dataplane.Change{{New: svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(5353, "11.0.1.2")})}}
	for _, test := range []struct {
		name  string
		flow  flow
		own   uint32
		wrong bool
	}{
		{"ours, of a frontend that is gone", with(gone, ours), ours, true},
		{"with bits of others besides", with(gone, ours|1), ours, true},
		{"somebody else's", with(gone, 1), ours, false},
		{"ours or another backend's", with(gone, ours), 0, false},
		{"not redirected", with(udp("203.0.113.9:53", "203.0.113.9:53"), ours), ours, false},
		{"of a frontend that is there", with(kept, ours), ours, false},
	} {
		s := staleBy(changes, rule{restart: true, mark: test.own})
		s.own = func(netip.Addr) bool { return false }
		require.Equal(t, test.wrong, s.wrong(&test.flow), test.name)
	}
	require.Nil(t, staleBy(nil, rule{restart: true}))
	require.NotNil(t, staleBy(nil, rule{restart: true, mark: ours}), "all frontends may be gone")
}

// TestQueries: the kernel is asked for what can be wrong, and for no more.
func TestQueries(t *testing.T) {
	pool := dataplane.Pool{Targets: to(53, "11.0.1.2")}
	vip := netip.MustParseAddr("203.0.113.1")
	one, none := svc(dataplane.UDP, 53, pool), svc(dataplane.UDP, 53, dataplane.Pool{})
	elsewhere, node, six := svc(dataplane.UDP, 53, pool), svc(dataplane.UDP, 53, pool), svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(53, "1100::2")})
	elsewhere.Frontends[0].IP = vip.Next()
	node.Frontends[0].IP, node.Frontends[0].Kind = netip.IPv4Unspecified(), dataplane.NodePort
	six.Frontends[0].IP = netip.MustParseAddr("1000::1")
	type change = dataplane.Change
	for _, test := range []struct {
		name    string
		changes []change
		rule    rule
		want    []query
	}{
		{"one address, targets gone", []change{{Old: one, New: none}}, rule{}, []query{{to: vip, redirected: true}}},
		{"one address, first target", []change{{Old: none, New: one}}, rule{}, []query{{to: vip}}},
		{"two addresses", []change{{Old: one}, {Old: elsewhere}}, rule{}, []query{{redirected: true}}},
		{"a node port", []change{{Old: node}}, rule{}, []query{{redirected: true}}},
		{"two families", []change{{New: one}, {Old: six}}, rule{}, []query{{to: vip}, {v6: true, redirected: true}}},
		{"a mark of our own", []change{{New: none}}, rule{restart: true, mark: 1}, []query{{redirected: true}, {v6: true, redirected: true}}},
	} {
		s := staleBy(test.changes, test.rule)
		require.NotNil(t, s, test.name)
		require.Equal(t, test.want, s.queries(), test.name)
	}
}
