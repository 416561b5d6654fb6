// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/proxy/rendertest"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

func TestRender(t *testing.T) {
	var variants []rendertest.Variant
	for _, config := range []*Config{{Scope: ScopeLocal}, {Scope: ScopeCluster}, {Scope: ScopeLocal, EgressSNAT: true}} {
		variants = append(variants, rendertest.Variant{
			Name: fmt.Sprintf("scope %s, egress %t", config.Scope, config.EgressSNAT),
			Render: func(item *fullstate.ServiceEndpoints) *dataplane.Service {
				s := render(item, config)
				if s == nil {
					return nil
				}
				require.NoError(t, s.Validate())
				return finish(s, config)
			},
		})
	}
	rendertest.Golden(t, variants...)
}

// TestEgressOfWhatIsServed: no connection may leave with an address that the service was not given.
func TestEgressOfWhatIsServed(t *testing.T) {
	config := &Config{Scope: ScopeLocal, EgressSNAT: true}
	s := render(rendertest.Load(t, "testdata/several-pods.yaml"), config)
	before := *s
	given := &dataplane.Service{Name: s.Name}
	for _, f := range s.Frontends {
		if f.IP != netip.MustParseAddr("10.0.0.55") {
			given.Frontends = append(given.Frontends, f)
		}
	}
	out := finish(given, config)
	require.Equal(t, before, *s)
	require.NoError(t, out.Validate())
	require.Len(t, out.Egress, 4)
	for _, e := range out.Egress {
		require.NotEqual(t, "10.0.0.55", e.IP.String())
	}
}
