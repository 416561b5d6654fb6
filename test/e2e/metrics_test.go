// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/test/e2e/proc"
)

// TestMetricsAndHealth: what an operator looks at, over HTTP.
func TestMetricsAndHealth(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(web)
	k := s.kube()
	s.wantState(k.API, nodeA, webState)
	// A node may run two backends that nothing tells apart.
	start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API, "--node-name", nodeA}})
	watch := start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API, "--node-name", nodeA}})
	for i, address := range []string{"10.1.0.1", "10.1.0.2"} { // the second is an event that the watcher waits for
		if i > 0 {
			s.pod("web-new", nodeA, address)
		}
		eventually(t, func() error {
			if !strings.Contains(watch.Stdout.String(), address) {
				return errNotYet
			}
			return nil
		})
	}

	for _, path := range []string{"/healthz", "/readyz"} {
		body, code, err := k.get(t.Context(), path)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code, body)
	}
	text, code, err := k.get(t.Context(), "/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code, text)
	for _, positive := range []string{
		"kpng_build_info", "kpng_store_synced", "kpng_store_commits_total", "kpng_ops_sent_total", "kpng_bytes_sent_total",
		"kpng_event_to_sent_seconds_count", "kpng_kube_events_total",
	} {
		require.Positive(t, metric(t, text, positive), positive)
	}
	require.EqualValues(t, 0, metric(t, text, "kpng_watcher_lag_commits"))
	require.Equal(t, 2, strings.Count(text, "\nkpng_watcher_lag_commits{"), "one value a watcher")
	require.Contains(t, text, `kpng_store_objects{kind="service"} 1`)
	require.Contains(t, text, `kpng_store_objects{kind="endpoint"} 3`)
	require.Zero(t, metric(t, text, "kpng_kube_stale"))

	_, code, err = k.get(t.Context(), "/debug/pprof/")
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, code, "pprof is off unless asked for")
}

// metric is the sum of a metric over its labels.
func metric(t *testing.T, text, name string) (sum float64) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, found, "no metric %s in:\n%s", name, text)
	for _, m := range found {
		value, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		sum += value
	}
	return sum
}
