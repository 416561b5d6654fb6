// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// value is what a registry would show of a metric.
func value(t *testing.T, m *metrics, name, result string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.collectors()...)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if len(metric.GetLabel()) > 0 && metric.GetLabel()[0].GetValue() != result {
				continue
			}
			switch {
			case metric.GetCounter() != nil:
				return metric.GetCounter().GetValue()
			case metric.GetHistogram() != nil:
				return float64(metric.GetHistogram().GetSampleCount())
			default:
				return metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, result)
	return 0
}

func TestMetrics(t *testing.T) {
	m := newMetrics()
	for _, result := range []string{resultSuccess, resultFailure, resultTimeout, resultStopped, resultNotStarted} {
		require.Zero(t, value(t, m, "kpng_callout_runs_total", result), "shown before the first run")
	}
	m.observe(time.Second, nil)
	m.observe(time.Second, errTimeout)
	require.EqualValues(t, 1, value(t, m, "kpng_callout_runs_total", resultSuccess))
	require.EqualValues(t, 1, value(t, m, "kpng_callout_runs_total", resultTimeout))
	require.EqualValues(t, 2, value(t, m, "kpng_callout_run_duration_seconds", ""))
	require.InDelta(t, time.Now().Unix(), value(t, m, "kpng_callout_last_success_timestamp_seconds", ""), 60)
}
