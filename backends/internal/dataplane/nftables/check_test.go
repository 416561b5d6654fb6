// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

// everyone is the services of all scenarios.
func everyone() (all []*dataplane.Service) {
	of := scenarios()
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, of[name]...)
	}
	return all
}

func nft(t testing.TB, h *netlab.Host, command string) { list(t, h, strings.Fields(command)...) }

// Whatever somebody else does to the table is noticed, and nothing that they do elsewhere.
func TestCheckNotices(t *testing.T) {
	h := netlab.ForTest(t).Host("node")
	w := newWriter(t)
	replace := func() { require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), everyone()) })) }
	check := func(want bool, why string) {
		t.Helper()
		require.NoError(t, h.Do(func() error {
			got, err := w.Check(t.Context())
			require.Equal(t, want, got, why)
			return err
		}))
	}
	check(false, "nothing was written yet")
	replace()
	check(true, "as written")
	nft(t, h, "add table inet admin")
	check(true, "another table")
	for _, harm := range []string{
		"add rule inet kpng-test targets4-tcp-2 accept",
		"insert rule inet kpng-test services drop",
		"replace rule inet kpng-test FIRST accept",
		"flush chain inet kpng-test targets4-tcp-2",
		"flush chain inet kpng-test prerouting",
		"add chain inet kpng-test admin",
		"delete element inet kpng-test targets4 { 203.0.113.5 . tcp . 80 . 1 }",
		"delete element inet kpng-test ports4 { 203.0.113.5 . tcp . 80 }",
		"add element inet kpng-test local4 { 192.0.2.77 }",
		"flush set inet kpng-test hairpin4",
		"add table inet kpng-test { flags dormant ; }",
		"delete table inet kpng-test",
	} {
		harm = strings.Replace(harm, "FIRST", firstOwnRule(t, h), 1)
		check(true, "before "+harm)
		nft(t, h, harm)
		check(false, harm)
		check(false, harm+", asked again")
		replace()
		check(true, "after the repair of "+harm)
	}
}

// firstOwnRule is the first rule of a chain of a single service.
func firstOwnRule(t *testing.T, h *netlab.Host) string {
	t.Helper()
	chain := ""
	for line := range strings.Lines(list(t, h, "-a", "list", "table", "inet", "kpng-test")) {
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == "chain" {
			chain = words[1]
		} else if strings.HasPrefix(chain, "front4-") && strings.Contains(line, "# handle") {
			return chain + " handle " + words[len(words)-1]
		}
	}
	t.Fatal("no chain of a single service")
	return ""
}

// Changes of ours do not hide what others do.
func TestCheckAfterApply(t *testing.T) {
	h := netlab.ForTest(t).Host("node")
	w := newWriter(t)
	all := everyone()
	require.NoError(t, h.Do(func() error {
		require.NoError(t, w.Replace(t.Context(), nil))
		for _, s := range all {
			require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{New: s}}))
		}
		for _, s := range all[1:] {
			require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{Old: s}}))
		}
		return nil
	}))
	nft(t, h, "add table inet admin")
	intact := func() (ok bool) {
		require.NoError(t, h.Do(func() (err error) {
			ok, err = w.Check(t.Context())
			return err
		}))
		return ok
	}
	require.True(t, intact(), "counted wrongly what was applied")
	nft(t, h, "flush map inet kpng-test ports4")
	require.NoError(t, h.Do(func() error {
		return w.Apply(t.Context(), []dataplane.Change{{New: service("ns/new", port("203.0.113.99", 80))}})
	}))
	require.False(t, intact(), "hidden by what was applied after it")
}
