// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

func TestAllIP(t *testing.T) { table(t, AllIPCases()) }

func TestNAT(t *testing.T) { table(t, NATCases()) }

func table(t *testing.T, cases []Case) {
	t.Parallel()
	for _, f := range flavours() {
		for _, c := range cases {
			t.Run(f.name+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				l := New(t, 2)
				c.Run(t, l, f.writer(t, l))
			})
		}
	}
}

// counts asks n times over TCP and counts who answered.
func (l *Lab) counts(t *testing.T, from string, to netip.AddrPort, n int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for range n {
		a, err := l.Ask(t.Context(), from, netlab.Probe{Network: TCP, To: to})
		require.NoError(t, err)
		counts[a.Host]++
	}
	return counts
}

func TestSpreadIsEven(t *testing.T) {
	t.Parallel()
	pods := []string{"n1-a", "n1-b", "n1-c", "n1-d", "n1-e", "n1-f", "n1-g"}
	forEach(t, len(pods), func(t *testing.T, l *Lab, fl flavour) {
		var services []*dataplane.Service
		for i, n := range []int{2, 3, 7} {
			for _, f := range Families {
				port := f.service80(fmt.Sprint("port", n), dataplane.ClusterIP, f.VIP(20+i), pods[:n]...)
				services = append(services, f.allIP(fmt.Sprint("all", n), 10+i, pods[:n]...), port)
			}
		}
		require.NoError(t, fl.writer(t, l).Replace(t.Context(), services))
		for i, n := range []int{2, 3, 7} {
			for _, f := range Families {
				require.NoError(t, Spread(l.counts(t, "client", netip.AddrPortFrom(f.VIP(10+i), Port), 60*n), pods[:n]...))
				require.NoError(t, Spread(l.counts(t, "n2-a", netip.AddrPortFrom(f.VIP(20+i), 80), 60*n), pods[:n]...))
			}
		}
	})
}

// TestAffinity has many clients. Each stays with its pod as long as it comes back in time, also over updates of the
// service that leave its pod there, and is drawn a new one after the timeout.
func TestAffinity(t *testing.T) {
	t.Parallel()
	const clients, timeout = 24, 2 * time.Second
	forEach(t, 3, func(t *testing.T, l *Lab, fl flavour) {
		var services []*dataplane.Service
		asks := map[netip.AddrPort][]netip.Addr{}
		for _, f := range Families {
			all, port := f.allIP("all", 1, "n1-a", "n1-b", "n1-c"), f.service80("port", dataplane.LoadBalancerIP, f.VIP(2), "n1-a", "n1-b", "n1-c")
			for _, s := range []*dataplane.Service{all, port} {
				for i := range s.Frontends {
					s.Frontends[i].Affinity = timeout
				}
			}
			services = append(services, all, port)
			addrs := l.MoreAddresses(t, f.V6, clients)
			asks[netip.AddrPortFrom(f.VIP(1), Port)], asks[netip.AddrPortFrom(f.VIP(2), 80)] = addrs, addrs
		}
		w := fl.writer(t, l)
		require.NoError(t, w.Replace(t.Context(), services))
		var wg sync.WaitGroup
		for to, addrs := range asks {
			wg.Go(func() {
				if err := l.affinity(t.Context(), to, addrs, timeout); err != nil {
					t.Errorf("%s: %v", to, err)
				}
			})
		}
		wg.Wait()
	})
}

// affinity tells what is wrong with how an address keeps its clients to its pods.
func (l *Lab) affinity(ctx context.Context, to netip.AddrPort, clients []netip.Addr, timeout time.Duration) error {
	first, err := l.whoServes(ctx, to, clients)
	if err != nil {
		return err
	}
	if len(slices.Compact(slices.Sorted(slices.Values(first)))) == 1 {
		return fmt.Errorf("one pod for all clients: %v", first)
	}
	for range 3 { // longer than the timeout in all, but never between two
		time.Sleep(timeout / 2)
		again, err := l.whoServes(ctx, to, clients)
		if err != nil {
			return err
		}
		if !slices.Equal(first, again) {
			return fmt.Errorf("clients changed pods within the timeout:\n%v\n%v", first, again)
		}
	}
	time.Sleep(timeout + timeout/2)
	later, err := l.whoServes(ctx, to, clients)
	if err == nil && slices.Equal(first, later) {
		err = fmt.Errorf("no client changed its pod after the timeout: %v", first)
	}
	return err
}

// whoServes asks from each of the client's addresses.
func (l *Lab) whoServes(ctx context.Context, to netip.AddrPort, from []netip.Addr) ([]string, error) {
	var pods []string
	for _, addr := range from {
		a, err := l.Ask(ctx, "client", netlab.Probe{Network: TCP, From: netip.AddrPortFrom(addr, 0), To: to})
		if err != nil {
			return nil, err
		}
		pods = append(pods, a.Host)
	}
	return pods, nil
}

// TestChanges goes through the life of a service with Apply only.
func TestChanges(t *testing.T) {
	t.Parallel()
	forEach(t, 2, func(t *testing.T, l *Lab, fl flavour) {
		w := fl.writer(t, l)
		require.NoError(t, w.Replace(t.Context(), nil))
		for _, f := range Families {
			client, to := f.Addr("client"), f.VIP(1)
			kept := f.service80("kept", dataplane.ClusterIP, f.VIP(2), "n1-b")
			a, b, gone := f.allIP("web", 1, "n1-a"), f.allIP("web", 1, "n1-b"), f.allIP("web", 1)
			moved := f.allIP("web", 3, "n1-b")
			one := func(vip netip.Addr, want Want) []Check { return []Check{ask("client", TCP, vip, Port, want)} }
			for _, step := range []struct {
				old, new *dataplane.Service
				checks   []Check
			}{
				{nil, kept, ask80("client", f.VIP(2), by(client, "n1-b"))},
				{nil, a, one(to, by(client, "n1-a"))},
				{a, b, one(to, by(client, "n1-b"))},
				{b, gone, one(to, refused)},
				{gone, b, one(to, by(client, "n1-b"))},
				{b, moved, append(one(to, silence), one(f.VIP(3), by(client, "n1-b"))...)},
				{moved, nil, one(f.VIP(3), silence)},
				{nil, a, one(to, by(client, "n1-a"))},
			} {
				require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{Old: step.old, New: step.new}}))
				l.Check(t, append(step.checks, ask("client", TCP, f.VIP(2), 80, by(client, "n1-b"))))
			}
		}
	})
}

// TestForeignRules has rules of others before, while and after ours are there: byte for byte the same.
func TestForeignRules(t *testing.T) {
	t.Parallel()
	forEach(t, 2, func(t *testing.T, l *Lab, fl flavour) {
		on(t, l, fl.foreign...)
		before := on(t, l, fl.dump...)
		require.NotEmpty(t, foreignRules(before))
		w := fl.writer(t, l)
		same := func(when string) {
			t.Helper()
			require.Equal(t, foreignRules(before), foreignRules(on(t, l, fl.dump...)), when)
		}
		old, next := Family{}.allIP("web", 1, "n1-a"), Family{}.allIP("web", 1, "n1-b")
		v6 := Family{V6: true}.service80("port", dataplane.LoadBalancerIP, Family{V6: true}.VIP(2), "n1-a")
		require.NoError(t, w.Replace(t.Context(), []*dataplane.Service{old, v6}))
		same("after Replace")
		require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{Old: old, New: next}}))
		same("after Apply")
		l.Check(t, []Check{ask("client", TCP, Family{}.VIP(1), Port, by(Family{}.Addr("client"), "n1-b"))})
		require.NotEqual(t, before, on(t, l, fl.dump...), "nothing of ours is in the dump, so it shows nothing")

		again := fl.writer(t, l) // after a crash, say
		require.NoError(t, again.Replace(t.Context(), []*dataplane.Service{v6}))
		same("after the Replace of the next run")
		l.Check(t, append(ask80("client", Family{V6: true}.VIP(2), by(Family{V6: true}.Addr("client"), "n1-a")),
			ask("client", TCP, Family{}.VIP(1), Port, silence)))
		require.NoError(t, again.Cleanup(t.Context()))
		require.Equal(t, foreignRules(before), foreignRules(on(t, l, fl.dump...)))
		require.NotContains(t, on(t, l, fl.dump...), "kpng")
		require.NotContains(t, on(t, l, fl.dump...), "KPNG")
		require.NoError(t, again.Cleanup(t.Context()), "there is nothing left to clean up")
	})
}

// TestFlushIsNoticed has somebody else take our rules away.
func TestFlushIsNoticed(t *testing.T) {
	t.Parallel()
	forEach(t, 2, func(t *testing.T, l *Lab, fl flavour) {
		w := fl.writer(t, l)
		var services []*dataplane.Service
		var checks []Check
		for _, f := range Families {
			services = append(services, f.allIP("web", 1, "n1-a"))
			checks = append(checks, everything("client", f.VIP(1), by(f.Addr("client"), "n1-a"))...)
		}
		intact := func(want bool, when string) {
			t.Helper()
			got, err := w.Check(t.Context())
			require.NoError(t, err, when)
			require.Equal(t, want, got, when)
		}
		require.NoError(t, w.Replace(t.Context(), services))
		intact(true, "after Replace")
		require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{New: Family{}.allIP("b", 2, "n1-b")}}))
		intact(true, "after Apply")
		on(t, l, fl.others...)
		intact(true, "after a change of what is not ours")
		for _, flush := range fl.flushes {
			on(t, l, flush...)
			intact(false, flush[0])
			intact(false, "asked again")
			l.Check(t, []Check{ask("client", TCP, Family{}.VIP(1), Port, silence)})
			require.NoError(t, w.Replace(t.Context(), services))
			intact(true, "after the repair")
			l.Check(t, checks)
		}
	})
}

// TestEstablishedConnections loads TCP streams while other services change 200 times, and while a new run replaces
// everything.
func TestEstablishedConnections(t *testing.T) {
	t.Parallel()
	forEach(t, 2, func(t *testing.T, l *Lab, fl flavour) {
		w := fl.writer(t, l)
		var services []*dataplane.Service
		for _, f := range Families {
			services = append(services, f.allIP("all", 1, "n1-a"), f.service80("port", dataplane.LoadBalancerIP, f.VIP(2), "n2-a"))
		}
		require.NoError(t, w.Replace(t.Context(), services))
		var streams []*Stream
		for _, f := range Families {
			streams = append(streams,
				l.OpenStream(t.Context(), t, "client", netip.AddrPortFrom(f.VIP(1), Port)),
				l.OpenStream(t.Context(), t, "client", netip.AddrPortFrom(f.VIP(2), 80)),
				l.OpenStream(t.Context(), t, "n1-a", netip.AddrPortFrom(f.VIP(1), Port)),
			)
		}
		last := updateOthers(t.Context(), t, w, 200)
		next := fl.writer(t, l)
		require.NoError(t, next.Replace(t.Context(), append(slices.Clone(services), last)))
		time.Sleep(100 * time.Millisecond)
		for _, s := range streams {
			load := s.Close()
			require.NoError(t, load.Err, "%v", load)
			require.Zero(t, load.Lost(), "%v", load)
			require.Greater(t, load.Sent, uint64(100))
		}
	})
}

// updateOthers moves a service from pod to pod, n times.
func updateOthers(ctx context.Context, t *testing.T, w dataplane.Writer, n int) (last *dataplane.Service) {
	t.Helper()
	f := Family{}
	pods := []string{"n1-a", "n1-b", "n2-a", "n2-b"}
	for i := range n {
		next := f.service80("other", dataplane.ClusterIP, f.VIP(3), pods[i%4], pods[(i+1)%4])
		require.NoError(t, w.Apply(ctx, []dataplane.Change{{Old: last, New: next}}))
		last = next
	}
	return last
}

// TestForwardDrops has a node that forwards nothing unless told so, as with docker on it.
func TestForwardDrops(t *testing.T) {
	t.Parallel()
	forEach(t, 2, func(t *testing.T, l *Lab, fl flavour) {
		on(t, l, fl.dropByRule...)
		c := bothFamilies("", func(f Family) Case {
			return Case{
				Services: []*dataplane.Service{f.allIP("all", 1, "n1-a"), f.service80("port", dataplane.ClusterIP, f.VIP(2), "n2-a")},
				Checks: slices.Concat(
					everything("client", f.VIP(1), by(f.Addr("client"), "n1-a")),
					ask80("n1-b", f.VIP(2), by(f.Addr("n1-b"), "n2-a")),
					// What is no service's stays forbidden.
					[]Check{ask("client", TCP, f.Addr("n1-b"), Port, silence)},
				),
			}
		})
		c.Run(t, l, fl.writer(t, l))
	})
}

// TestTwoOwners has two backends on a node, also on different dataplanes. Neither disturbs the other.
func TestTwoOwners(t *testing.T) {
	t.Parallel()
	for _, fl := range flavours() {
		for _, other := range flavours() {
			t.Run(fl.name+" and "+other.name, func(t *testing.T) {
				t.Parallel()
				l := New(t, 2)
				twoOwners(t, l, fl.writerOf(t, l, "kpng-one"), other.writerOf(t, l, "kpng-two"))
			})
		}
	}
}

func twoOwners(t *testing.T, l *Lab, first, second dataplane.Writer) {
	t.Helper()
	var one, two []*dataplane.Service
	var ones, twos []Check
	for _, f := range Families {
		one = append(one, f.allIP("all", 1, "n1-a"))
		ones = append(ones, everything("client", f.VIP(1), by(f.Addr("client"), "n1-a"))...)
		two = append(two, f.service80("port", dataplane.LoadBalancerIP, f.VIP(2), "n2-a"))
		twos = append(twos, ask80("client", f.VIP(2), by(f.Addr("n1"), "n2-a"))...)
	}
	require.NoError(t, first.Replace(t.Context(), one))
	require.NoError(t, second.Replace(t.Context(), two))
	l.Check(t, slices.Concat(ones, twos))
	require.NoError(t, first.Replace(t.Context(), one))
	intact, err := second.Check(t.Context())
	require.NoError(t, err)
	require.True(t, intact, "another's Replace is not a change of ours")
	l.Check(t, slices.Concat(ones, twos))
	require.NoError(t, first.Cleanup(t.Context()))
	l.Check(t, append(twos, ask("client", TCP, Family{}.VIP(1), Port, silence)))
}

// TestSwitch goes from one dataplane to the other, in the order in which it is done on a node: the new one writes, then
// the old one is cleaned up. Streams go on, and there is somebody for new connections all the time.
func TestSwitch(t *testing.T) {
	t.Parallel()
	all := flavours()
	for _, pair := range [][2]flavour{{all[0], all[1]}, {all[1], all[0]}, {all[0], all[2]}, {all[2], all[0]}} {
		from, to := pair[0], pair[1]
		t.Run(from.name+" to "+to.name, func(t *testing.T) {
			t.Parallel()
			l := New(t, 2)
			before, after := from.writer(t, l), to.writer(t, l)
			var services []*dataplane.Service
			var checks []Check
			for _, f := range Families {
				services = append(services, f.allIP("all", 1, "n1-a"), f.service80("port", dataplane.LoadBalancerIP, f.VIP(2), "n2-a"))
				checks = append(checks, ask("client", TCP, f.VIP(1), Port, by(f.Addr("client"), "n1-a")), ask("client", TCP, f.VIP(2), 80, by(f.Addr("n1"), "n2-a")))
			}
			require.NoError(t, before.Replace(t.Context(), services))
			var streams []*Stream
			for _, c := range checks {
				streams = append(streams, l.OpenStream(t.Context(), t, "client", c.To))
			}
			l.Check(t, checks)
			require.NoError(t, after.Replace(t.Context(), services))
			l.Check(t, checks)
			require.NoError(t, before.Cleanup(t.Context()))
			l.Check(t, checks)
			for _, s := range streams {
				load := s.Close()
				require.NoError(t, load.Err, "%v", load)
				require.Zero(t, load.Lost(), "%v", load)
			}
		})
	}
}
