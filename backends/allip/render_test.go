// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/proxy"
	"sigs.k8s.io/kpng/backends/internal/proxy/rendertest"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// leaving is with --egress-snat.
var leaving = &Config{Scope: ScopeLocal, EgressSNAT: true, ClusterCIDRs: proxy.Prefixes{List: []netip.Prefix{
	netip.MustParsePrefix("11.0.0.0/16"), netip.MustParsePrefix("1100::/64"),
}}}

func TestRender(t *testing.T) {
	var variants []rendertest.Variant
	for _, config := range []*Config{{Scope: ScopeLocal}, {Scope: ScopeCluster}, leaving} {
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
	config := leaving
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

	only4 := *leaving
	only4.ClusterCIDRs.List = only4.ClusterCIDRs.List[:1]
	for _, e := range finish(given, &only4).Egress {
		require.True(t, e.IP.Is4(), "what is inside of the cluster is not known for IPv6")
	}
}
