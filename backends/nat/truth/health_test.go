// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
)

// healthCheck is what a load balancer is told.
type healthCheck struct {
	status int
	header http.Header
	body   map[string]any
}

// get asks the node over HTTP as a load balancer does.
func (w *world) get(ctx context.Context, to netip.AddrPort) (healthCheck, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: w.Client.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/healthz", to), http.NoBody)
	if err != nil {
		return healthCheck{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return healthCheck{}, err
	}
	defer resp.Body.Close()
	got := healthCheck{status: resp.StatusCode, header: resp.Header}
	got.header.Del("Date")
	got.header.Del("Content-Length")
	return got, json.NewDecoder(resp.Body).Decode(&got.body)
}

// wantHealth is kube-proxy's answer for a Service with so many endpoints on the node.
func wantHealth(s *service, endpoints int) healthCheck {
	status := http.StatusOK
	if endpoints == 0 {
		status = http.StatusServiceUnavailable
	}
	return healthCheck{
		status: status,
		header: http.Header{
			"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"},
			"X-Load-Balancing-Endpoint-Weight": {fmt.Sprint(endpoints)},
		},
		body: map[string]any{
			"service":        map[string]any{"namespace": namespace, "name": s.name},
			"localEndpoints": float64(endpoints), "serviceProxyHealthy": true,
		},
	}
}

// checkHealth asks the health check node ports of Services of the table, and the node's own.
func (r *session) checkHealth(t *testing.T, w *world) {
	for name, endpoints := range map[string]int{
		"local": 1, "both-here": 1, "ranges-local": 1, "local-none-here": 0, "none-local": 0, "terminating-local": 0,
	} {
		s := r.find(name)
		for _, f := range nstest.Families {
			got, err := w.get(t.Context(), netip.AddrPortFrom(f.Addr("n1"), uint16(s.healthPort)))
			require.NoError(t, err, name)
			require.Equal(t, wantHealth(s, endpoints), got, name)
		}
	}
	none := r.find("near")
	_, err := w.get(t.Context(), netip.AddrPortFrom(v4.Addr("n1"), uint16(none.healthPort)))
	require.Error(t, err, "policy Cluster has no such port")

	got, err := w.get(t.Context(), netip.AddrPortFrom(v4.Addr("n1"), 10256))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, got.status)
	for _, key := range []string{"lastUpdated", "currentTime"} {
		require.IsType(t, "", got.body[key], key)
		delete(got.body, key)
	}
	if w.proxy&kubeProxy != 0 {
		require.Contains(t, got.body, "status", perFamily)
		delete(got.body, "status")
	}
	require.Equal(t, map[string]any{"nodeEligible": true, "healthy": true}, got.body)
}

func (r *session) find(name string) *service {
	for _, s := range r.services {
		if s.name == name {
			return s
		}
	}
	panic("no Service " + name + " in the table")
}
