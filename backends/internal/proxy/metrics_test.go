// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestEveryMetricIsThereFromTheStart(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newMetrics("kpng-some").collectors()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	require.Equal(t, map[string]int{
		"kpng_some_conflicts": 1, "kpng_some_conflicts_total": 1, "kpng_some_refused_addresses_total": len(reasons),
	}, series)
}
