// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

// inTable runs a test in a network namespace with a table of its own.
func inTable(t testing.TB, test func(s *socket)) {
	t.Helper()
	in(t, netlab.ForTest(t).Host("node"), test)
}

func in(t testing.TB, node *netlab.Host, test func(s *socket)) {
	t.Helper()
	require.NoError(t, node.Do(func() error {
		s, err := open()
		require.NoError(t, err)
		test(s)
		return s.close()
	}))
}

// made is an entry to make. Who answers has the port that was asked.
type made struct {
	protocol uint8
	from, to netip.AddrPort
	by       netip.Addr
	zone     uint16
}

func (m made) attributes() []byte {
	address := func(v4, v6 uint16, a netip.Addr) []byte {
		if a.Is6() {
			v4 = v6
		}
		return attribute(nil, v4, a.AsSlice())
	}
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	direction := func(kind uint16, from, to netip.AddrPort) []byte {
		ip := append(address(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, from.Addr()), address(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, to.Addr())...)
		proto := attribute(attribute(attribute(nil, nl.CTA_PROTO_NUM, []byte{m.protocol}),
			nl.CTA_PROTO_SRC_PORT, port(from.Port())), nl.CTA_PROTO_DST_PORT, port(to.Port()))
		return nested(nil, kind, nested(nested(nil, nl.CTA_TUPLE_IP, ip), nl.CTA_TUPLE_PROTO, proto))
	}
	b := append(direction(nl.CTA_TUPLE_ORIG, m.from, m.to), direction(nl.CTA_TUPLE_REPLY, netip.AddrPortFrom(m.by, m.to.Port()), m.from)...)
	b = attribute(b, nl.CTA_TIMEOUT, number(600))
	if m.zone != 0 {
		b = attribute(b, nl.CTA_ZONE, binary.BigEndian.AppendUint16(nil, m.zone))
	}
	return b
}

func (s *socket) makeEntry(t testing.TB, m made) {
	t.Helper()
	family := query{v6: m.to.Addr().Is6()}.family()
	require.NoError(t, s.send(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, family, m.attributes()))
	_, err := s.receive(func([]byte) {})
	require.NoError(t, err, "%+v", m)
}

func (s *socket) entries(t testing.TB, q query) (all []entry) {
	t.Helper()
	require.NoError(t, s.list(t.Context(), q, func(b []byte) {
		f, ok := parse(b)
		require.True(t, ok)
		all = append(all, entry{flow: f, family: q.family(), identity: identity(b)})
	}))
	return all
}

var (
	vip, vip6     = netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("1000::1")
	podA, podB    = netip.MustParseAddr("11.0.1.2"), netip.MustParseAddr("11.0.1.3")
	clientAddress = netip.MustParseAddrPort("198.51.100.7:5060")
)

// TestParse: what the kernel says of what it was told.
func TestParse(t *testing.T) {
	inTable(t, func(s *socket) {
		client6 := netip.MustParseAddrPort("[2001:db8::7]:5060")
		pod6 := netip.MustParseAddr("1100::2")
		for _, protocol := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP} {
			for _, m := range []made{
				{protocol: uint8(protocol), from: clientAddress, to: netip.AddrPortFrom(vip, 53), by: podA},
				{protocol: uint8(protocol), from: client6, to: netip.AddrPortFrom(vip6, 53), by: pod6},
			} {
				if protocol == dataplane.TCP {
					continue // the kernel wants to know a state, and package reset tests it
				}
				s.makeEntry(t, m)
				q := query{v6: m.to.Addr().Is6()}
				got := s.entries(t, q)
				require.Len(t, got, 1)
				require.Equal(t, flow{protocol: m.protocol, to: m.to, by: m.by, byPort: 53}, got[0].flow)
				removed, err := s.remove(&got[0])
				require.NoError(t, err)
				require.True(t, removed)
				require.Empty(t, s.entries(t, q))
			}
		}
	})
}

// TestQueryPicks: the kernel leaves out what was not asked for.
func TestQueryPicks(t *testing.T) {
	inTable(t, func(s *socket) {
		other := vip.Next()
		for to, by := range map[netip.Addr]netip.Addr{vip: podA, other: podB} {
			s.makeEntry(t, made{protocol: 17, from: clientAddress, to: netip.AddrPortFrom(to, 53), by: by})
		}
		require.Len(t, s.entries(t, query{}), 2)
		got := s.entries(t, query{to: other})
		require.Len(t, got, 1)
		require.Equal(t, other, got[0].to.Addr())
		require.Empty(t, s.entries(t, query{redirected: true}), "neither was, as far as the kernel knows")
		require.Empty(t, s.entries(t, query{v6: true}))
	})
}

// TestRemoveIsExact: what took an entry's place is another one, and so is what is in another zone.
func TestRemoveIsExact(t *testing.T) {
	inTable(t, func(s *socket) {
		m := made{protocol: 17, from: clientAddress, to: netip.AddrPortFrom(vip, 53), by: podA}
		s.makeEntry(t, m)
		was := s.entries(t, query{})
		require.Len(t, was, 1)
		removed, err := s.remove(&was[0])
		require.NoError(t, err)
		require.True(t, removed)

		m.by = podB
		s.makeEntry(t, m)
		removed, err = s.remove(&was[0])
		require.NoError(t, err)
		require.False(t, removed)
		require.Len(t, s.entries(t, query{}), 1, "the same client, sent on to a target that is right")

		m.zone = 7
		s.makeEntry(t, m)
		for _, e := range s.entries(t, query{}) {
			if len(e.identity) > len(was[0].identity) { // it says the zone
				removed, err = s.remove(&e)
				require.NoError(t, err)
				require.True(t, removed)
			}
		}
		left := s.entries(t, query{})
		require.Len(t, left, 1)
		require.Len(t, left[0].identity, len(was[0].identity), "that of zone 0")
	})
}

// fill makes n entries of UDP to the VIP from as many clients, of which every last one in a thousand goes to podB.
func (s *socket) fill(t testing.TB, n int) {
	for i := range n {
		m := made{protocol: 17, from: netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), 5060),
			to: netip.AddrPortFrom(vip, 53), by: podA}
		if i%1000 == 999 {
			m.by = podB
		}
		s.makeEntry(t, m)
	}
}

func goneB() []dataplane.Change {
	with := func(addrs ...string) *dataplane.Service {
		return svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(53, addrs...)})
	}
	return []dataplane.Change{{Old: with(podA.String(), podB.String()), New: with(podA.String())}}
}

// TestMemory: a big table is not held in memory, and what is wrong in it is found.
func TestMemory(t *testing.T) {
	const n = 30000
	inTable(t, func(s *socket) {
		s.fill(t, n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		removed, err := Cleaner{}.Clean(t.Context(), goneB())
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Equal(t, n/1000, removed)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "allocated in all; an entry has some 150 bytes")
		require.Len(t, s.entries(t, query{}), n-n/1000)
	})
}

// BenchmarkClean looks for what is wrong in a table of 200,000 flows of which nothing is: with what the kernel can leave
// out, and without.
func BenchmarkClean(b *testing.B) {
	node := netlab.ForTest(b).Host("node")
	in(b, node, func(s *socket) { s.fill(b, 200_000) })
	kept := goneB()[0].Old
	two := func(old, next *dataplane.Service) []dataplane.Change {
		one, other := dataplane.Change{Old: old, New: next}, goneB()[0]
		other.Old.Frontends[0].IP, other.New = vip.Next(), nil
		return []dataplane.Change{one, other}
	}
	more := svc(dataplane.UDP, 53, dataplane.Pool{Targets: to(53, podA.String(), podB.String(), "11.0.1.4")})
	for name, changes := range map[string][]dataplane.Change{
		"one-address": two(nil, nil)[1:], "redirected": two(more, more), "all": two(more, kept),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			in(b, node, func(*socket) {
				for b.Loop() {
					n, err := Cleaner{}.Clean(b.Context(), changes)
					require.NoError(b, err)
					require.Zero(b, n)
				}
			})
		})
	}
}
