// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"sigs.k8s.io/kpng/internal/netlab"
)

func TestMain(m *testing.M) {
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	goleak.VerifyTestMain(m)
}

var families = []bool{false, true}

// protocols are all that a lab can ask in here, as questions.
func protocols() []netlab.Probe {
	all := []netlab.Probe{{Network: TCP}, {Network: UDP}, {Network: UDP, Size: 4000}, {Network: ICMP}, {Network: ICMP, Size: 4000}, {Network: GRE}}
	if !SCTPOfKernel() {
		all = append(all, netlab.Probe{Network: SCTP})
	}
	return all
}

func TestEveryProtocolSaysWhoAnswered(t *testing.T) {
	t.Parallel()
	l := New(t, 2)
	for _, v6 := range families {
		for _, q := range protocols() {
			for _, pod := range []string{"n1-a", "n2-b"} {
				q.To = netip.AddrPortFrom(l.Addr(pod, v6), Port)
				a, err := l.Ask(t.Context(), "client", q)
				require.NoError(t, err)
				require.Equal(t, pod, a.Host, "%+v", q)
				require.Equal(t, l.Addr("client", v6), a.Client.Addr(), "%+v", q)
			}
		}
	}
}

func TestSourcePortIsKept(t *testing.T) {
	t.Parallel()
	l := New(t, 1)
	for i, network := range []string{TCP, UDP, SCTP} {
		if network == SCTP && SCTPOfKernel() {
			continue
		}
		from := netip.AddrPortFrom(netip.Addr{}, uint16(5000+i))
		a, err := l.Ask(t.Context(), "n2-a", netlab.Probe{Network: network, From: from, To: netip.AddrPortFrom(l.Addr("n1-a", false), Port)})
		require.NoError(t, err)
		require.Equal(t, netip.AddrPortFrom(l.Addr("n2-a", false), from.Port()), a.Client)
	}
}

func TestSilenceAndRefusal(t *testing.T) {
	t.Parallel()
	l := New(t, 1)
	for _, v6 := range families {
		_, err := l.Ask(t.Context(), "client", netlab.Probe{Network: TCP, To: netip.AddrPortFrom(l.Addr("n1-a", v6), 1)})
		require.True(t, Refused(err), "%v", err)
		require.False(t, Unanswered(err), "%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), Silence)
	defer cancel()
	// The client has no address .200 beside it.
	_, err := l.Ask(ctx, "n1-a", netlab.Probe{Network: GRE, To: netip.MustParseAddrPort("172.31.0.200:0")})
	require.True(t, Unanswered(err) || Refused(err), "%v", err)
}

func TestClientIsMany(t *testing.T) {
	t.Parallel()
	l := New(t, 1)
	for _, v6 := range families {
		for _, addr := range l.MoreAddresses(t, v6, 3) {
			a, err := l.Ask(t.Context(), "client", netlab.Probe{Network: TCP, From: netip.AddrPortFrom(addr, 0), To: netip.AddrPortFrom(l.Addr("n1-a", v6), Port)})
			require.NoError(t, err)
			require.Equal(t, addr, a.Client.Addr())
		}
	}
}

func TestStreamCounts(t *testing.T) {
	t.Parallel()
	l := New(t, 1)
	s := l.OpenStream(t.Context(), t, "client", netip.AddrPortFrom(l.Addr("n1-a", true), Port))
	require.Equal(t, "n1-a", s.Host)
	time.Sleep(100 * time.Millisecond)
	load := s.Close()
	require.NoError(t, load.Err)
	require.Greater(t, load.Sent, uint64(10))
	require.Zero(t, load.Lost(), "%v", load)
}

func TestStreamNoticesLoss(t *testing.T) {
	t.Parallel()
	l := New(t, 1)
	s := l.OpenStream(t.Context(), t, "client", netip.AddrPortFrom(l.Addr("n1-a", false), Port))
	link, err := l.Host("n1-a").Netlink().LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, l.Host("n1-a").Netlink().LinkSetDown(link))
	time.Sleep(50 * time.Millisecond)
	load := s.Close()
	require.Error(t, load.Err)
	require.NotZero(t, load.Lost(), "%v", load)
}

func TestDatagramsTellWhoAnswers(t *testing.T) {
	t.Parallel()
	l := New(t, 1)
	s := l.SendDatagrams(t, "client", 5060, netip.AddrPortFrom(l.Addr("n1-a", false), Port))
	require.NoError(t, s.AnsweredBy("n1-a", 3*time.Second))
	require.Error(t, s.AnsweredBy("n1-b", 50*time.Millisecond))
	require.Error(t, s.Silent(300*time.Millisecond))
	link, err := l.Host("n1-a").Netlink().LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, l.Host("n1-a").Netlink().LinkSetDown(link))
	require.NoError(t, s.Silent(3*time.Second))
}

func TestSpread(t *testing.T) {
	t.Parallel()
	require.NoError(t, Spread(map[string]int{"a": 103, "b": 97}, "a", "b"))
	require.NoError(t, Spread(map[string]int{"a": 70, "b": 66, "c": 64}, "a", "b", "c"))
	require.ErrorContains(t, Spread(map[string]int{"a": 200}, "a", "b"), "uneven")
	require.ErrorContains(t, Spread(map[string]int{"a": 150, "b": 75, "c": 75}, "a", "b", "c"), "uneven")
	require.ErrorContains(t, Spread(map[string]int{"a": 100, "b": 99, "x": 1}, "a", "b"), "others")
	require.ErrorContains(t, Spread(map[string]int{"a": 4, "b": 4}, "a", "b"), "too few")
}

// TestChiSquareBounds computes the probability that is left above each bound from the incomplete gamma function's series
// for whole and half numbers.
func TestChiSquareBounds(t *testing.T) {
	t.Parallel()
	for df, x := range chiSquareBound {
		tail, term := math.Erfc(math.Sqrt(x/2)), math.Sqrt(2*x/math.Pi)*math.Exp(-x/2)
		first := 3
		if df%2 == 0 {
			tail, term, first = math.Exp(-x/2), x/2*math.Exp(-x/2), 4
		}
		for k := first; k <= df; k += 2 {
			tail += term
			term *= x / float64(k)
		}
		require.InDelta(t, 1e-5, tail, 1e-8, "%d degrees of freedom", df)
	}
}
