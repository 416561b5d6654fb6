// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

var (
	loopback = netip.MustParseAddr("127.0.0.1")
	client   = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
)

// freePort is a port that nobody listens on.
func freePort(t *testing.T) uint16 {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

type reply struct {
	status int
	header http.Header
	body   map[string]any
}

func get(t *testing.T, port uint16) (reply, error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/healthz", port), http.NoBody)
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	r := reply{status: resp.StatusCode, header: resp.Header}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&r.body))
	return r, nil
}

func start(t *testing.T) (*Ports, *atomic.Bool) {
	healthy := &atomic.Bool{}
	healthy.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	p := newPorts(ctx, healthy.Load, time.Millisecond)
	t.Cleanup(func() {
		cancel()
		require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.closed && len(p.open) == 0 }, patience, time.Millisecond)
	})
	p.Listen([]netip.Addr{loopback})
	return p, healthy
}

func TestPorts(t *testing.T) {
	p, healthy := start(t)
	port := freePort(t)
	s := Service{Namespace: "ns", Name: "web", Port: port, LocalEndpoints: 2}
	p.Update(map[string]Service{"ns/web": s})
	r, err := get(t, port)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.status)
	require.Equal(t, map[string]any{
		"service":        map[string]any{"namespace": "ns", "name": "web"},
		"localEndpoints": 2., "serviceProxyHealthy": true,
	}, r.body)
	require.Equal(t, "application/json", r.header.Get("Content-Type"))
	require.Equal(t, "nosniff", r.header.Get("X-Content-Type-Options"))
	require.Equal(t, "2", r.header.Get("X-Load-Balancing-Endpoint-Weight"))

	s.LocalEndpoints = 0
	p.Update(map[string]Service{"ns/web": s})
	r, err = get(t, port)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, r.status, "send traffic elsewhere")

	s.LocalEndpoints = 1
	p.Update(map[string]Service{"ns/web": s})
	healthy.Store(false)
	r, err = get(t, port)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Equal(t, false, r.body["serviceProxyHealthy"])

	next := freePort(t)
	s.Port = next
	p.Update(map[string]Service{"ns/web": s})
	_, err = get(t, port)
	require.Error(t, err, "the service has another port now")
	_, err = get(t, next)
	require.NoError(t, err)

	p.Listen([]netip.Addr{})
	_, err = get(t, next)
	require.Error(t, err, "none of this node's addresses")
	p.Listen([]netip.Addr{loopback})
	_, err = get(t, next)
	require.NoError(t, err)

	p.Update(map[string]Service{"ns/web": {}})
	_, err = get(t, next)
	require.Error(t, err, "the service is gone")
}

// TestPortIsTaken: it is served when the other program lets it go.
func TestPortIsTaken(t *testing.T) {
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := uint16(other.Addr().(*net.TCPAddr).Port)
	p, _ := start(t)
	p.Update(map[string]Service{"ns/a": {Namespace: "ns", Name: "a", Port: port, LocalEndpoints: 1}})
	require.NoError(t, other.Close())
	require.Eventually(t, func() bool { r, err := get(t, port); return err == nil && r.status == http.StatusOK }, patience, time.Millisecond)
}

// TestNode: /healthz and /livez are those of kube-proxy.
func TestNode(t *testing.T) {
	healthy := false
	h := Node(func() bool { return healthy })
	for _, path := range []string{"/healthz", "/livez"} {
		for _, healthy = range []bool{false, true} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
			want := http.StatusServiceUnavailable
			if healthy {
				want = http.StatusOK
			}
			require.Equal(t, want, w.Code)
			var body map[string]any
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
			require.Equal(t, true, body["nodeEligible"])
			require.Equal(t, healthy, body["healthy"])
			require.Contains(t, body, "lastUpdated")
			require.Contains(t, body, "currentTime")
		}
	}
}
