// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

func TestChoiceSteps(t *testing.T) {
	seen := map[string]bool{}
	for n := 1; n <= dataplane.MaxTargets; n++ {
		c := choiceOf(lookup{f: family4}, dataplane.TCP, n)
		require.True(t, c.least <= n && n <= c.most, "%d: %+v", n, c)
		seen[c.name()] = true
		// The chain is the same for all that it says it is for.
		require.Equal(t, c, choiceOf(lookup{f: family4}, dataplane.TCP, c.least))
		require.Equal(t, c, choiceOf(lookup{f: family4}, dataplane.TCP, c.most))
	}
	require.Len(t, seen, 28, "chains for any number of targets")
}

// What the rules of a choice draw gives every target its part, closely.
func TestChoiceIsEven(t *testing.T) {
	for n := 1; n <= dataplane.MaxTargets; n++ {
		c := choiceOf(lookup{f: family4}, dataplane.TCP, n)
		// A packet comes to draw i with the chance that all draws before it were no target's.
		below, last := 0.0, 0.0 // the chances of the first target and of the last
		come := 1.0
		for _, m := range c.moduli() {
			below += come / float64(m)
			if n <= m {
				last += come / float64(m)
			}
			come *= 1 - math.Min(1, float64(n)/float64(m))
		}
		require.Zero(t, come, "%d targets: packets that find none", n)
		part := 1 / float64(n)
		require.InEpsilon(t, part, below, 0.013, "%d targets", n)
		require.InEpsilon(t, part, last, 0.013, "%d targets", n)
	}
}
