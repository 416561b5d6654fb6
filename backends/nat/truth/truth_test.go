// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
	"sigs.k8s.io/kpng/internal/netlab"
	"sigs.k8s.io/kpng/test/e2e/isolate"
)

// session is a test's proxies, all of which follow the one API server.
type session struct {
	*table
	worlds   []*world
	barriers int
}

func TestTruth(t *testing.T) {
	r := &session{table: cases()}
	c := newChanges(r.table)
	began := time.Now()
	r.create(t)
	for _, p := range allProxies {
		if isolate.Rootless() && p.proxies&kubeProxy != 0 {
			t.Logf("%s needs root and is left out", p.name)
			continue
		}
		r.worlds = append(r.worlds, newWorld(t, p.proxies, p.name, p.args, r.services))
	}
	r.settle(t)
	r.tellZones(t)
	t.Logf("all proxies serve %d Services after %v", len(r.services), time.Since(began))
	r.each(t, "table", func(t *testing.T, w *world) { w.checkAll(t, r.rows) })
	r.each(t, "health", r.checkHealth)
	c.run(t, r)
}

// each runs a test for each proxy, at the same time.
func (r *session) each(t *testing.T, name string, test func(*testing.T, *world)) {
	t.Helper()
	began := time.Now()
	t.Run(name, func(t *testing.T) {
		for _, w := range r.worlds {
			t.Run(w.name, func(t *testing.T) {
				t.Parallel()
				test(t, w)
			})
		}
	})
	t.Logf("%s: %v", name, time.Since(began))
}

// create makes all Services.
func (r *session) create(t *testing.T) {
	t.Helper()
	const atOnce = 8
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(atOnce)
	for _, s := range r.services {
		group.Go(func() error { return s.create(ctx) })
	}
	require.NoError(t, group.Wait())
}

// tellZones has all proxies know their node's zone: kube-proxy may miss it when it starts, and learns of it when it changes.
func (r *session) tellZones(t *testing.T) {
	t.Helper()
	for _, zone := range []string{"zone-c", "zone-a"} {
		labels := map[string]any{"metadata": map[string]any{"labels": map[string]any{corev1.LabelTopologyZone: zone}}}
		require.NoError(t, api.Do(t.Context(), http.MethodPatch, "/api/v1/nodes/n1", labels, nil))
	}
	rows := slices.DeleteFunc(slices.Clone(r.rows), func(row *row) bool { return row.kind != hintsKind })
	for _, w := range r.worlds {
		wait := func() (err error) {
			for _, row := range rows {
				err = errors.Join(err, w.check(t.Context(), row))
			}
			return err
		}
		for end := time.Now().Add(patience); ; {
			err := wait()
			if err == nil {
				break
			}
			require.False(t, time.Now().After(end), "%v", err)
		}
	}
}

// settle returns when all proxies have all that is on the API server by now. Each kind of object is told of in the order
// of changes: a proxy that serves a Service that is newer than they has them all.
func (r *session) settle(t *testing.T) {
	t.Helper()
	r.barriers++
	const first = 200 // no Service of the table has such a number
	s := newService(first+r.barriers, fmt.Sprintf("barrier-%d", r.barriers), spec{endpoints: at("n2-b")})
	require.NoError(t, s.create(t.Context()))
	group, ctx := errgroup.WithContext(t.Context())
	for _, w := range r.worlds {
		for _, f := range nstest.Families {
			group.Go(func() error { return w.serves(ctx, s, f) })
		}
	}
	require.NoError(t, group.Wait())
}

// serves waits until a service is served.
func (w *world) serves(ctx context.Context, s *service, f nstest.Family) error {
	const wait = 50 * time.Millisecond
	for end := time.Now().Add(patience); ; {
		within, cancel := context.WithTimeout(ctx, wait)
		_, err := w.Ask(within, "n1-a", netlab.Probe{Network: nstest.TCP, To: s.clusterIP.in(f)})
		<-within.Done()
		cancel()
		switch {
		case err == nil:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%s does not serve %s of %s within %v: %w\n%s", w.name, s.clusterIP.in(f), s.name, patience, err, w.lastWords())
		}
		select {
		case <-w.ended:
			return fmt.Errorf("%s has ended:\n%s", w.name, w.lastWords())
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
}
