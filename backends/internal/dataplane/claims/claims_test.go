// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

type change = dataplane.Change

var (
	x, y = netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	node = netip.IPv4Unspecified()
	six  = netip.MustParseAddr("1000::1")
)

func all(ip netip.Addr) dataplane.Key { return dataplane.Key{IP: ip} }

func tcp(ip netip.Addr, port uint16) dataplane.Key {
	return dataplane.Key{IP: ip, Protocol: dataplane.TCP, Port: port}
}

func udp(ip netip.Addr, port uint16) dataplane.Key {
	return dataplane.Key{IP: ip, Protocol: dataplane.UDP, Port: port}
}

func service(name string, keys ...dataplane.Key) *dataplane.Service {
	s := &dataplane.Service{Name: name}
	for _, k := range keys {
		kind := dataplane.ExternalIP
		if k.IP.IsUnspecified() {
			kind = dataplane.NodePort
		}
		s.Frontends = append(s.Frontends, dataplane.Frontend{Kind: kind, IP: k.IP, Protocol: k.Protocol, Port: k.Port})
	}
	s.Normalize()
	return s
}

func wants(name string, keys ...dataplane.Key) change { return change{New: service(name, keys...)} }

// gives: the API server gave these to the service.
func gives(name string, keys ...dataplane.Key) change {
	c := wants(name, keys...)
	for i := range c.New.Frontends {
		c.New.Frontends[i].Kind = dataplane.ClusterIP
	}
	return c
}

// made: the service was made at that time.
func made(at int64, c change) change {
	c.New.Created = time.Unix(at, 0)
	return c
}

func leaves(name string) change { return change{Old: &dataplane.Service{Name: name}} }

// owners is who has what, as the table told it over time.
type owners map[string][]dataplane.Key

func (o owners) follow(t *testing.T, changes []change) {
	t.Helper()
	for _, c := range changes {
		require.Equal(t, o[c.Name()], keysOf(c.Old), "what %s had", c.Name())
		if delete(o, c.Name()); c.New != nil && len(c.New.Frontends) > 0 {
			o[c.Name()] = keysOf(c.New)
		}
	}
}

func keysOf(s *dataplane.Service) (keys []dataplane.Key) {
	if s == nil {
		return nil
	}
	for i := range s.Frontends {
		keys = append(keys, s.Frontends[i].Key())
	}
	slices.SortFunc(keys, dataplane.Key.Compare)
	return keys
}

func TestUpdate(t *testing.T) {
	type keys = []dataplane.Key
	for _, test := range []struct {
		name      string
		updates   [][]change
		owners    owners
		refused   []Refusal // by the last update
		conflicts int
	}{
		{"nobody else", [][]change{{wants("a", tcp(x, 80)), wants("b", tcp(x, 81), tcp(y, 80))}},
			owners{"a": keys{tcp(x, 80)}, "b": keys{tcp(x, 81), tcp(y, 80)}}, nil, 0},
		{"at once: the first by name", [][]change{{wants("b", tcp(x, 80)), wants("a", tcp(x, 80))}},
			owners{"a": keys{tcp(x, 80)}}, []Refusal{{"b", tcp(x, 80), "a"}}, 1},
		{"one after the other: the first", [][]change{{wants("b", tcp(x, 80))}, {wants("a", tcp(x, 80))}},
			owners{"b": keys{tcp(x, 80)}}, []Refusal{{"a", tcp(x, 80), "b"}}, 1},
		{"an update of the owner", [][]change{{wants("b", tcp(x, 80))}, {wants("a", tcp(x, 80))}, {wants("b", tcp(x, 80), tcp(x, 81))}},
			owners{"b": keys{tcp(x, 80), tcp(x, 81)}}, nil, 1},
		{"the owner goes", [][]change{{wants("c", tcp(x, 80))}, {wants("b", tcp(x, 80)), wants("a", tcp(x, 80))}, {leaves("c")}},
			owners{"a": keys{tcp(x, 80)}}, nil, 1},
		{"the owner goes as another comes", [][]change{{wants("c", tcp(x, 80))}, {wants("b", tcp(x, 80))}, {leaves("c"), wants("a", tcp(x, 80))}},
			owners{"a": keys{tcp(x, 80)}}, nil, 1},
		{"the owner wants something else", [][]change{{wants("a", tcp(x, 80))}, {wants("b", tcp(x, 80))}, {wants("a", tcp(x, 81))}},
			owners{"a": keys{tcp(x, 81)}, "b": keys{tcp(x, 80)}}, nil, 0},
		{"the loser goes", [][]change{{wants("a", tcp(x, 80))}, {wants("b", tcp(x, 80), tcp(y, 80))}, {leaves("b")}},
			owners{"a": keys{tcp(x, 80)}}, nil, 0},
		{"protocols are different", [][]change{{wants("a", tcp(x, 53)), wants("b", udp(x, 53))}},
			owners{"a": keys{tcp(x, 53)}, "b": keys{udp(x, 53)}}, nil, 0},
		{"all of an address", [][]change{{wants("a", all(x))}, {wants("b", tcp(x, 80), tcp(y, 80))}},
			owners{"a": keys{all(x)}, "b": keys{tcp(y, 80)}}, []Refusal{{"b", tcp(x, 80), "a"}}, 1},
		{"all of an address and ports of it", [][]change{{wants("a", all(x), tcp(x, 80))}},
			owners{"a": keys{all(x), tcp(x, 80)}}, nil, 0},
		{"all of an address of which others have ports", [][]change{{wants("c", tcp(x, 81)), wants("b", tcp(x, 80))}, {wants("a", all(x), tcp(x, 82))}},
			owners{"a": keys{tcp(x, 82)}, "b": keys{tcp(x, 80)}, "c": keys{tcp(x, 81)}}, []Refusal{{"a", all(x), "b"}}, 1},
		{"the last port is let go", [][]change{{wants("c", tcp(x, 81)), wants("b", tcp(x, 80))}, {wants("a", all(x))}, {leaves("b")}, {leaves("c")}},
			owners{"a": keys{all(x)}}, nil, 0},
		{"all of an address is let go", [][]change{{wants("a", all(x))}, {wants("c", tcp(x, 80)), wants("b", tcp(x, 81)), wants("d", all(x))}, {leaves("a")}},
			owners{"b": keys{tcp(x, 81)}, "c": keys{tcp(x, 80)}}, nil, 1},
		{"at once: the oldest", [][]change{{wants("a", tcp(x, 80)), made(2, wants("b", tcp(x, 80))), made(1, wants("c", tcp(x, 81))), made(2, wants("d", tcp(x, 81)))}},
			owners{"a": keys{tcp(x, 80)}, "c": keys{tcp(x, 81)}}, []Refusal{{"b", tcp(x, 80), "a"}, {"d", tcp(x, 81), "c"}}, 2},
		{"at once: the oldest, whatever its name", [][]change{{made(2, wants("a", tcp(x, 80))), made(1, wants("b", tcp(x, 80)))}},
			owners{"b": keys{tcp(x, 80)}}, []Refusal{{"a", tcp(x, 80), "b"}}, 1},
		{"the oldest comes later", [][]change{{made(2, wants("b", tcp(x, 80)))}, {made(1, wants("a", tcp(x, 80)))}},
			owners{"b": keys{tcp(x, 80)}}, []Refusal{{"a", tcp(x, 80), "b"}}, 1},
		{"a cluster IP before what another service wants: at once", [][]change{{wants("a", tcp(x, 443)), gives("b", tcp(x, 443))}},
			owners{"b": keys{tcp(x, 443)}}, []Refusal{{"a", tcp(x, 443), "b"}}, 1},
		{"a cluster IP that comes later", [][]change{{wants("a", tcp(x, 443), tcp(y, 443))}, {gives("b", tcp(x, 443))}},
			owners{"a": keys{tcp(y, 443)}, "b": keys{tcp(x, 443)}}, []Refusal{{"a", tcp(x, 443), "b"}}, 1},
		{"a cluster IP of which another service wants all", [][]change{{wants("a", all(x))}, {gives("b", tcp(x, 443))}, {leaves("b")}},
			owners{"a": keys{all(x)}}, nil, 0},
		{"all of a cluster IP, of which another service wants a port", [][]change{{wants("a", tcp(x, 443), tcp(y, 1))}, {gives("b", all(x))}},
			owners{"a": keys{tcp(y, 1)}, "b": keys{all(x)}}, []Refusal{{"a", tcp(x, 443), "b"}}, 1},
		{"what a service lost falls to who waited", [][]change{{wants("a", all(x))}, {wants("c", tcp(x, 80))}, {gives("b", tcp(x, 443))}},
			owners{"b": keys{tcp(x, 443)}, "c": keys{tcp(x, 80)}}, []Refusal{{"a", all(x), "b"}}, 1},
		{"a cluster IP that is one no more", [][]change{{gives("a", tcp(x, 443))}, {wants("a", tcp(x, 443))}, {gives("b", tcp(x, 443))}},
			owners{"b": keys{tcp(x, 443)}}, []Refusal{{"a", tcp(x, 443), "b"}}, 1},
		{"node ports", [][]change{{wants("b", tcp(node, 30080)), wants("a", tcp(node, 30080), tcp(node, 30081))}, {wants("a", tcp(node, 30081))}},
			owners{"a": keys{tcp(node, 30081)}, "b": keys{tcp(node, 30080)}}, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			table, got := New(), owners{}
			var refused []Refusal
			for _, update := range test.updates {
				var out []change
				out, refused = table.Update(update)
				got.follow(t, out)
			}
			require.Equal(t, test.owners, got)
			require.ElementsMatch(t, test.refused, refused)
			require.Equal(t, test.conflicts, table.Conflicts())
		})
	}
}

// TestEgress: an address that a service did not get is not one that its pods go out with.
func TestEgress(t *testing.T) {
	table := New()
	table.Update([]change{wants("a", all(x))})
	s := service("b", all(x), all(y))
	pod := netip.MustParseAddr("11.0.1.2")
	s.Egress = []dataplane.Egress{{Source: pod, IP: x}, {Source: pod.Next(), IP: y}}
	out, _ := table.Update([]change{{New: s}})
	require.Len(t, out, 1)
	require.Equal(t, s.Egress[1:], out[0].New.Egress)
	require.Len(t, s.Egress, 2, "what was asked for is not changed")
	out, _ = table.Update([]change{leaves("a")})
	require.Equal(t, s.Egress, out[len(out)-1].New.Egress)
}

// model does the same in the plainest way: after every update it looks at everybody.
type model struct {
	wanted map[string]*dataplane.Service
	owners map[dataplane.Key]string
}

func (m *model) update(changes []change) {
	for _, c := range changes {
		if delete(m.wanted, c.Name()); c.New != nil {
			m.wanted[c.Name()] = c.New
		}
	}
	for k, name := range m.owners {
		if !slices.Contains(keysOf(m.wanted[name]), k) {
			delete(m.owners, k)
		}
	}
	names := slices.Sorted(maps.Keys(m.wanted))
	for _, firm := range []bool{true, false} { // what the API server gave comes first
		for _, name := range names {
			for i := range m.wanted[name].Frontends {
				f := &m.wanted[name].Frontends[i]
				if firm && !isFirm(f) {
					continue
				}
				if firm && !m.given(name, f.Key()) {
					maps.DeleteFunc(m.owners, func(k dataplane.Key, owner string) bool { return owner != name && meet(k, f.Key()) })
				}
				if m.free(name, f.Key()) {
					m.owners[f.Key()] = name
				}
			}
		}
	}
}

// given tells whether the API server gave another service what stands in the way of a key.
func (m *model) given(name string, k dataplane.Key) bool {
	for have, owner := range m.owners {
		if owner != name && meet(have, k) && m.firm(owner, have) {
			return true
		}
	}
	return false
}

// firm tells whether the service wants the key because the API server gave it.
func (m *model) firm(name string, k dataplane.Key) bool {
	return slices.ContainsFunc(m.wanted[name].Frontends, func(f dataplane.Frontend) bool { return f.Key() == k && isFirm(&f) })
}

// meet tells whether two services cannot have both.
func meet(k, l dataplane.Key) bool {
	return k.IP == l.IP && (k == l || k.Protocol == dataplane.Any || l.Protocol == dataplane.Any)
}

func (m *model) free(name string, k dataplane.Key) bool {
	for have, owner := range m.owners {
		if owner != name && meet(have, k) {
			return false
		}
	}
	return true
}

func (m *model) have() owners {
	o := owners{}
	for k, name := range m.owners {
		o[name] = append(o[name], k)
	}
	for _, keys := range o {
		slices.SortFunc(keys, dataplane.Key.Compare)
	}
	return o
}

func (m *model) conflicts() (n int) {
	for name, s := range m.wanted {
		for i := range s.Frontends {
			if m.owners[s.Frontends[i].Key()] != name {
				n++
			}
		}
	}
	return n
}

// TestAgainstModel makes services come, change and go at random, on so few frontends that they meet all the time.
func TestAgainstModel(t *testing.T) {
	var keys []dataplane.Key
	for _, ip := range []netip.Addr{x, y, six} {
		keys = append(keys, all(ip), tcp(ip, 80), tcp(ip, 81), udp(ip, 80))
	}
	keys = append(keys, tcp(node, 30000), tcp(node, 30001), udp(node, 30000))
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // so that a failure can be had again
		table, got := New(), owners{}
		m := &model{wanted: map[string]*dataplane.Service{}, owners: map[dataplane.Key]string{}}
		for step := range 100 {
			var changes []change
			for _, i := range r.Perm(6)[:1+r.IntN(3)] {
				name := fmt.Sprintf("s%d", i)
				if r.IntN(4) == 0 {
					changes = append(changes, leaves(name))
					continue
				}
				var some []dataplane.Key
				for _, k := range r.Perm(len(keys))[:r.IntN(5)] {
					some = append(some, keys[k])
				}
				c := wants(name, some...)
				for f := range c.New.Frontends {
					if c.New.Frontends[f].Kind == dataplane.ExternalIP && r.IntN(4) == 0 {
						c.New.Frontends[f].Kind = dataplane.ClusterIP
					}
				}
				changes = append(changes, c)
			}
			before := m.have()
			out, refused := table.Update(changes)
			got.follow(t, out)
			m.update(changes)
			require.Equal(t, m.have(), got, "seed %d, step %d: %v", seed, step, changes)
			require.Equal(t, m.conflicts(), table.Conflicts(), "seed %d, step %d", seed, step)
			requireKept(t, before, m)
			for _, no := range refused {
				require.False(t, m.free(no.Service, no.Key), "%+v", no)
				require.Contains(t, got, no.Owner)
			}
		}
	}
}

// requireKept: what a service had and still wants it has, but for what the API server gave another.
func requireKept(t *testing.T, before owners, m *model) {
	t.Helper()
	for name, keys := range before {
		for _, k := range keys {
			if m.wanted[name] == nil || !slices.Contains(keysOf(m.wanted[name]), k) || m.owners[k] == name {
				continue
			}
			require.True(t, m.given(name, k) && !m.firm(name, k), "%s lost %s", name, k)
		}
	}
}

// TestStartInAnyOrder: what all come with at once is divided alike, in whatever order it is handed in.
func TestStartInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0)) //nolint:gosec // as above
	var changes []change
	for i := range 40 {
		ip := []netip.Addr{x, y, six}[r.IntN(3)]
		changes = append(changes, wants(fmt.Sprintf("s%d", i), []dataplane.Key{all(ip), tcp(ip, 80), tcp(ip, uint16(80+r.IntN(20)))}[r.IntN(3)]))
		if i%8 == 0 {
			changes[i] = gives(changes[i].Name(), changes[i].New.Frontends[0].Key())
		}
	}
	var first owners
	for range 50 {
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		got := owners{}
		out, _ := New().Update(changes)
		got.follow(t, out)
		require.True(t, slices.IsSortedFunc(out, func(a, b change) int { return cmp.Compare(a.Name(), b.Name()) }))
		if first == nil {
			first = got
		}
		require.Equal(t, first, got)
	}
}

// BenchmarkUpdate changes one service among many that are on one address: node ports, which all share the unspecified
// one, and ports of an external IP that somebody waits for as a whole. Every other service has a second that waits for it.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{50, 500, 5000} {
		for name, ip := range map[string]netip.Addr{"node-ports": node, "external-IP": x} {
			b.Run(fmt.Sprintf("%s/services=%d", name, n), func(b *testing.B) {
				table := New()
				var changes []change
				for i := range n {
					changes = append(changes, wants(fmt.Sprintf("a%04d", i), tcp(ip, uint16(30000+i))))
					if i%2 == 0 {
						changes = append(changes, wants(fmt.Sprintf("b%04d", i), tcp(ip, uint16(30000+i))))
					}
				}
				table.Update(changes)
				if ip == x {
					table.Update([]change{wants("whole", all(x))})
				}
				b.ReportAllocs()
				for b.Loop() {
					table.Update([]change{leaves("a0000")})
					table.Update([]change{leaves("b0000")})
					table.Update([]change{wants("a0000", tcp(ip, 30000))})
					table.Update([]change{wants("b0000", tcp(ip, 30000))})
				}
			})
		}
	}
}
