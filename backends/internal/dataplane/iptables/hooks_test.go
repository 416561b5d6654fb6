// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// prerouting are the targets of the rules in PREROUTING.
func prerouting(t *testing.T, flavor Flavor) (targets []string) {
	t.Helper()
	out, err := exec.Command("iptables-"+string(flavor), "-t", "nat", "-S", "PREROUTING").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "-A ") {
			targets = append(targets, rule(line).target())
		}
	}
	return targets
}

func commands(t *testing.T, flavor Flavor, lines ...string) {
	t.Helper()
	for _, line := range lines {
		out, err := exec.Command("iptables-"+string(flavor), strings.Fields("-w 30 "+line)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
	}
}

func requireIntact(t *testing.T, w *Writer, want bool) {
	t.Helper()
	intact, err := w.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, intact)
}

// TestBeforeKubeProxy: it puts its rules first, too, when it starts after us. Those of others stay where they are.
func TestBeforeKubeProxy(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		const own = "KPNG-TEST_SERVICES"
		commands(t, flavor, "-t nat -N KUBE-SERVICES", "-t nat -N ADMIN", "-t nat -A PREROUTING -j KUBE-SERVICES", "-t nat -A PREROUTING -j ADMIN")
		require.NoError(t, w.Replace(t.Context(), nil))
		require.Equal(t, []string{own, "KUBE-SERVICES", "ADMIN"}, prerouting(t, flavor))
		requireIntact(t, w, true)

		commands(t, flavor, "-t nat -I PREROUTING -p tcp -j ADMIN")
		requireIntact(t, w, true)
		commands(t, flavor, "-t nat -I PREROUTING -j KUBE-SERVICES", "-t nat -I PREROUTING -p udp -j ADMIN")
		requireIntact(t, w, false)
		require.NoError(t, w.Replace(t.Context(), nil))
		require.Equal(t, []string{own, "ADMIN", "KUBE-SERVICES", "ADMIN", "KUBE-SERVICES", "ADMIN"}, prerouting(t, flavor))
		requireIntact(t, w, true)

		before := foreign(t, flavor)
		require.NoError(t, w.Replace(t.Context(), scenarios()[1].services))
		require.Equal(t, before, foreign(t, flavor))
		require.Equal(t, w.Text(scenarios()[1].services), listings(t, w, flavor))
	})
}

// TestOwnersByPriority: whoever starts first, the lower priority stands first; among equals, who was first stays.
func TestOwnersByPriority(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, _ *Writer, flavor Flavor) {
		open := func(owner string, priority int) *Writer {
			w, err := New(dataplane.Options{Owner: owner, Priority: priority}, flavor)
			require.NoError(t, err)
			return w
		}
		early, late, equal := open("early", 3), open("late", 7), open("equal", 7)
		all := []*Writer{early, late, equal}
		for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}} {
			for _, i := range order {
				require.NoError(t, all[i].Replace(t.Context(), scenarios()[1].services))
			}
			got := prerouting(t, flavor)
			require.Len(t, got, 3, "order %v", order)
			require.Equal(t, "EARLY_SERVICES", got[0], "order %v", order)
			for _, w := range all {
				requireIntact(t, w, true)
			}
			for _, w := range all {
				require.NoError(t, w.Cleanup(t.Context()))
			}
			require.Empty(t, prerouting(t, flavor))
		}
	})
}

// TestEarlierOwnerIsLetBefore us when somebody put it behind.
func TestEarlierOwnerIsLetBefore(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		require.NoError(t, w.Replace(t.Context(), nil))
		commands(t, flavor, "-t nat -N OTHER_SERVICES")
		out, err := exec.Command("iptables-"+string(flavor), "-t", "nat", "-A", "PREROUTING", "-m", "comment", "--comment", "kpng priority 2", "-j", "OTHER_SERVICES").CombinedOutput()
		require.NoError(t, err, string(out))
		requireIntact(t, w, false)
		require.NoError(t, w.Replace(t.Context(), nil))
		require.Equal(t, []string{"OTHER_SERVICES", "KPNG-TEST_SERVICES"}, prerouting(t, flavor))
		requireIntact(t, w, true)
	})
}
