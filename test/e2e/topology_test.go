// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/test/e2e/proc"
)

const hinted = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hand-1, labels: {kubernetes.io/service-name: hand}}
addressType: IPv4
ports: [{name: db, port: 5432}]
endpoints:
- {addresses: [10.9.0.1], nodeName: "{nodeA}", hints: {forZones: [{name: ZONE1}]}}
- {addresses: [10.9.0.2], nodeName: "{nodeB}", hints: {forZones: [{name: ZONE2}]}}
`

// TestTopologyHints: hints decide what a node gets, and a change of the hints alone is sent.
func TestTopologyHints(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	zones := func(one, two string) { s.apply(strings.NewReplacer("ZONE1", one, "ZONE2", two).Replace(hinted)) }
	only := func(node, endpoint string) {
		s.wantState(k.API, node, "{ns}/hand headless db:5432/TCP>5432\n- "+endpoint)
	}
	s.apply(byHand)
	zones(zoneA, zoneB)
	only(nodeA, "10.9.0.1 here")
	only(nodeB, "10.9.0.2 here")
	s.wantState(k.API, "unknown-node", `
		{ns}/hand headless db:5432/TCP>5432
		- 10.9.0.1
		- 10.9.0.2`)

	watch := start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API, "--node-name", nodeA}})
	eventually(t, func() error {
		if !strings.Contains(watch.Stdout.String(), "10.9.0.1") {
			return errNotYet
		}
		return nil
	})
	require.NotContains(t, watch.Stdout.String(), "10.9.0.2")
	zones(zoneB, zoneA) // nothing but the hints
	eventually(t, func() error {
		if !strings.Contains(watch.Stdout.String(), "10.9.0.2") {
			return errNotYet
		}
		return nil
	})
	only(nodeA, "10.9.0.2")
	only(nodeB, "10.9.0.1")
}

// TestTrafficDistribution: the hints that the real controller writes for a Service that prefers near endpoints.
func TestTrafficDistribution(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.webPods()
	s.apply(strings.Replace(web, "spec: {", "spec: {trafficDistribution: PreferClose, ", 1))
	s.wantState(k.API, nodeA, "{ns}/web headless http:80/TCP>8080\n- 10.1.0.1 here")
	s.wantState(k.API, nodeB, "{ns}/web headless http:80/TCP>8080\n- 10.2.0.1 here")
}
