// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/proxy"
	"sigs.k8s.io/kpng/backends/internal/proxy/rendertest"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

var knows = &Config{ClusterCIDR: proxy.Prefixes{List: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}

func TestRender(t *testing.T) {
	variant := func(name string, config *Config) rendertest.Variant {
		return rendertest.Variant{Name: name, Render: func(item *fullstate.ServiceEndpoints) *dataplane.Service { return render(item, config) }}
	}
	rendertest.Golden(t, variant("pods of IPv4 are known", knows), variant("--masquerade-all", &Config{MasqueradeAll: true}))
}

func TestAdapt(t *testing.T) {
	s := render(rendertest.Load(t, "testdata/source-ranges.yaml"), knows)
	load := func(s *dataplane.Service) map[netip.Addr][]netip.Prefix {
		got := map[netip.Addr][]netip.Prefix{}
		for _, f := range s.Frontends {
			if f.Kind == dataplane.LoadBalancerIP {
				got[f.IP] = f.Sources
			}
		}
		return got
	}
	v4, v6 := netip.MustParseAddr("203.0.113.12"), netip.MustParseAddr("2001:db8::12")
	node := func(ip string) map[netip.Addr]bool { return map[netip.Addr]bool{netip.MustParseAddr(ip): true} }
	before := load(s)
	require.Same(t, s, adapt(s, nil))
	require.Same(t, s, adapt(s, node("198.51.100.8")), "a node that may not ask")
	adapted := load(adapt(s, node("198.51.100.7")))
	require.ElementsMatch(t, append(before[v4][:2:2], netip.PrefixFrom(v4, 32)), adapted[v4])
	require.Equal(t, []netip.Prefix{}, adapted[v6], "nobody stays nobody")
	require.Equal(t, before, load(s), "the service is not changed")
}

func TestChecked(t *testing.T) {
	item := rendertest.Load(t, "testdata/external-local.yaml")
	got := checked(item)
	require.Equal(t, "ns", got.Namespace)
	require.Equal(t, "lb", got.Name)
	require.EqualValues(t, 32000, got.Port)
	require.Equal(t, 1, got.LocalEndpoints)

	item.Endpoints[0].Terminating = true
	require.Zero(t, checked(item).LocalEndpoints, "no more is to be sent here, though what comes is served")
	item.Service.ExternalTrafficToLocal = false
	require.Zero(t, checked(item).Port, "policy Cluster has no such port")
}
