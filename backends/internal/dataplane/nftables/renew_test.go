// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

// affinitySets are the names of those there are.
func affinitySets(t *testing.T, h *netlab.Host) (names []string) {
	for line := range strings.Lines(list(t, h, "list", "sets", "inet")) {
		if words := strings.Fields(line); len(words) > 1 && strings.HasPrefix(words[1], "affinity4-") {
			names = append(names, words[1])
		}
	}
	return names
}

// A Replace, also by the next process, leaves clients with their targets, and nothing else of what was there.
func TestReplaceKeepsClients(t *testing.T) {
	lab := netlab.ForTest(t)
	h, fresh := lab.Host("node"), lab.Host("fresh")
	w := newWriter(t)
	sticky := scenarios()["affinity"]
	require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), everyone()) }))
	require.Greater(t, len(affinitySets(t, h)), 2)
	require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), sticky) }))
	sets := affinitySets(t, h)
	require.Len(t, sets, 2)
	nft(t, h, "add element inet kpng-test "+sets[0]+" { 192.0.2.1 timeout 1h }")
	nft(t, h, "add rule inet kpng-test services drop")
	nft(t, h, "add chain inet kpng-test admin { type filter hook input priority 0 ; }")
	nft(t, h, "add element inet kpng-test local4 { 192.0.2.77 }")
	for _, next := range []string{"the same process", "the next"} {
		require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), sticky) }), next)
		require.Contains(t, list(t, h, "list", "set", "inet", "kpng-test", sets[0]), "192.0.2.1", next)
		w = newWriter(t)
	}
	require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), sticky) }))
	nft(t, h, "flush set inet kpng-test "+sets[0])
	require.NoError(t, fresh.Do(func() error { return newWriter(t).Replace(t.Context(), sticky) }))
	require.Equal(t, sortedLines(list(t, fresh, "list", "ruleset")), sortedLines(list(t, h, "list", "ruleset")))
	require.NoError(t, h.Do(func() error {
		intact, err := w.Check(t.Context())
		require.True(t, intact)
		return err
	}))
	require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), nil) }))
	require.Empty(t, affinitySets(t, h))
}

// A table of that name that is not ours, or was made by another version, goes as a whole.
func TestReplaceOfAnything(t *testing.T) {
	lab := netlab.ForTest(t)
	h, fresh := lab.Host("node"), lab.Host("fresh")
	services := everyone()
	require.NoError(t, h.Do(func() error { return newWriter(t).Replace(t.Context(), services) }))
	nft(t, h, "add counter inet kpng-test odd")
	nft(t, h, "add table inet kpng-test { flags dormant ; }")
	require.NoError(t, h.Do(func() error { return newWriter(t).Replace(t.Context(), services) }))
	require.NoError(t, fresh.Do(func() error { return newWriter(t).Replace(t.Context(), services) }))
	require.Equal(t, sortedLines(list(t, fresh, "list", "ruleset")), sortedLines(list(t, h, "list", "ruleset")))
}
