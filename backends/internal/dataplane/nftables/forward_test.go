// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

// Only where FORWARD of iptables drops by policy is there a rule of ours, which stands last, comes back, and goes.
func TestForwardOfIptables(t *testing.T) {
	h := netlab.ForTest(t).Host("node")
	w := newWriter(t)
	run := func(args ...string) string {
		t.Helper()
		out, err := h.Command(t.Context(), args[0], args[1:]...).Output()
		require.NoError(t, err, "%v", args)
		return string(out)
	}
	do := func(f func() error) {
		t.Helper()
		require.NoError(t, h.Do(f))
	}
	check := func() error {
		intact, err := w.Check(t.Context())
		require.True(t, intact)
		return err
	}
	const accept = "-A FORWARD -m connmark --mark 0x1000/0x1000 -m comment --comment \"kpng-test: what it redirected\" -j ACCEPT\n"
	programs := []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"}
	before := map[string]string{}
	for _, p := range programs {
		run(p, "-A", "FORWARD", "-p", "tcp", "--dport", "1", "-j", "DROP")
		before[p] = run(p, "-S")
	}
	do(func() error { return w.Replace(t.Context(), nil) })
	for _, p := range programs {
		require.Equal(t, before[p], run(p, "-S"), "nothing is dropped by policy")
		run(p, "-P", "FORWARD", "DROP")
		before[p] = run(p, "-S")
	}
	for _, again := range []string{"new", "taken away"} {
		do(check)
		do(check)
		for _, p := range programs {
			require.Equal(t, before[p]+accept, run(p, "-S"), "%s, %s", p, again)
			run(p, "-D", "FORWARD", "2")
		}
	}
	do(func() error { return w.Replace(t.Context(), nil) })
	do(func() error { return newWriter(t).Replace(t.Context(), nil) })
	for _, p := range programs {
		require.Equal(t, before[p]+accept, run(p, "-S"), p)
	}
	do(func() error { return newWriter(t).Cleanup(t.Context()) })
	for _, p := range programs {
		require.Equal(t, before[p], run(p, "-S"), p)
	}
}

// A node without iptables has no such policy.
func TestNoIptables(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	h := netlab.ForTest(t).Host("node")
	w := newWriter(t)
	require.NoError(t, h.Do(func() error {
		require.NoError(t, w.Replace(t.Context(), everyone()))
		intact, err := w.Check(t.Context())
		require.True(t, intact)
		require.NoError(t, err)
		return w.Cleanup(t.Context())
	}))
}
