// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

func TestMain(m *testing.M) {
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

func testNode(t *testing.T) *node {
	t.Helper()
	if err := netlab.Privileged(); err != nil {
		t.Skip(err)
	}
	n, err := newNode()
	require.NoError(t, err)
	t.Cleanup(n.close)
	return n
}

// TestEndpointsTellWhoTheyAre: what obeys relies on.
func TestEndpointsTellWhoTheyAre(t *testing.T) {
	t.Parallel()
	n := testNode(t)
	for _, at := range [][2]int{{0, 0}, {0, 9}, {77, 3}, {19_999, 9}} {
		ip := endpointIP(at[0], at[1])
		require.True(t, netip.MustParsePrefix(endpointCIDR).Contains(ip), ip)
		require.True(t, netip.MustParsePrefix(serviceCIDR).Contains(clusterIP(at[0])), clusterIP(at[0]))
		who, err := n.answers(t.Context(), netip.AddrPortFrom(ip, podPort), 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, ip.As4()[3], who)
	}
	_, err := n.answers(t.Context(), serviceAddress(0), 100*time.Millisecond)
	require.Error(t, err, "nobody serves it")
}

// TestWatchersSeeWhatConcernsAService: a commit is noted, and only that of the Service in question.
func TestWatchersSeeWhatConcernsAService(t *testing.T) {
	for _, d := range []struct {
		dataplane dataplane
		set       []string // for the 7th Service
		other     []string // for another
		tells     bool     // the kernel says what was written
	}{
		{nftables, nft(7), nft(8), true},
		{iptablesNFT, iptables("nft", 7), iptables("nft", 8), true},
		{iptablesLegacy, iptables("legacy", 7), nil, false},
	} {
		t.Run(string(d.dataplane), func(t *testing.T) {
			t.Parallel()
			r := &running{proxy: proxy{kpng, d.dataplane}, node: testNode(t)}
			run := func(command []string) {
				text, err := r.node.router.Command(t.Context(), command[0], command[1:]...).CombinedOutput()
				require.NoError(t, err, "%s", text)
			}
			run([]string{"iptables-legacy", "-t", "nat", "-S"}) // makes the table
			w, err := r.watch()
			require.NoError(t, err)
			defer func() { require.NoError(t, w.close()) }()
			if d.tells {
				run(d.other)
				_, err = w.wait(t.Context(), 7, 200*time.Millisecond)
				require.ErrorContains(t, err, serviceName(7))
			}
			before := time.Now()
			run(d.set)
			at, err := w.wait(t.Context(), 7, 5*time.Second)
			require.NoError(t, err)
			require.True(t, at.After(before))
			who, err := r.node.answers(t.Context(), serviceAddress(7), 10*time.Second)
			require.NoError(t, err)
			require.Equal(t, endpointIP(7, 4).As4()[3], who)
		})
	}
}

// nft sends a Service to its fourth endpoint, iptables does so too.
func nft(service int) []string {
	return []string{"nft", fmt.Sprintf("add table ip t; add chain ip t c { type nat hook prerouting priority -100; }; add rule ip t c ip daddr %s tcp dport %d dnat to %s:%d",
		clusterIP(service), servicePort, endpointIP(service, 4), podPort)}
}

func iptables(flavor string, service int) []string {
	return []string{"iptables-" + flavor, "-w", "-t", "nat", "-A", "PREROUTING", "-d", clusterIP(service).String(), "-p", "tcp",
		"--dport", fmt.Sprint(servicePort), "-j", "DNAT", "--to-destination", fmt.Sprintf("%s:%d", endpointIP(service, 4), podPort)}
}

func TestRatioIsThatOfEachRound(t *testing.T) {
	require.InDelta(t, 0.5, ratio([]float64{1, 10, 100}, []float64{2, 20, 300}), 1e-9)
	require.Equal(t, "50 %", percent(0.5))
	require.Equal(t, "2.5", times(5*time.Second, 2*time.Second))
}
