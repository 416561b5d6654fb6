// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

// TestRefused: the kernel says which services it would refuse, and stays as it was.
func TestRefused(t *testing.T) {
	t.Parallel()
	h := netlab.ForTest(t).Host("node")
	w := newWriter(t)
	var all []*dataplane.Service
	for name, services := range scenarios() {
		if name != "mixed" { // which has a frontend of another one
			all = append(all, services...)
		}
	}
	ask := func(services ...*dataplane.Service) (names []string) {
		require.NoError(t, h.Do(func() (err error) { names, err = w.Refused(t.Context(), services); return err }))
		return names
	}
	require.Empty(t, ask())
	require.Empty(t, ask(all...), "what Replace takes")

	before := w.Text(all)
	require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), all) }))
	listed := list(t, h, "list", "ruleset")
	var bad []string
	for i := range 3 {
		s := service(fmt.Sprintf("ns/bad-%d", i), port(fmt.Sprintf("203.0.113.10%d", i), 80, targets(80, "11.0.1.9")...))
		s.Egress = []dataplane.Egress{ // one pod that has two addresses
			{Source: addr(fmt.Sprintf("11.0.1.10%d", i)), IP: addr("203.0.113.1")}, {Source: addr(fmt.Sprintf("11.0.1.10%d", i)), IP: addr("203.0.113.2")},
		}
		require.NoError(t, s.Validate())
		bad = append(bad, s.Name)
		all = append([]*dataplane.Service{s}, all...)
	}
	require.Equal(t, bad, ask(all...))
	require.Equal(t, bad[:1], ask(all[2]))
	require.Equal(t, listed, list(t, h, "list", "ruleset"))
	require.Equal(t, before, w.Text(all[3:]))
	require.Error(t, h.Do(func() error { return w.Replace(t.Context(), all) }))
	require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), all[3:]) }))
}
