// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kpng/api/localv1"
)

// requireIPSet checks what localv1.IPSet promises.
func requireIPSet(t *testing.T, set *localv1.IPSet) {
	t.Helper()
	for family, list := range map[bool][]string{true: set.GetV4(), false: set.GetV6()} {
		require.True(t, slices.IsSorted(list))
		require.Len(t, slices.Compact(slices.Clone(list)), len(list))
		for _, text := range list {
			addr, err := netip.ParseAddr(text)
			require.NoError(t, err)
			require.Equal(t, family, addr.Is4())
			require.Equal(t, text, addr.String())
		}
	}
}

func FuzzService(f *testing.F) {
	f.Add(`{metadata: {namespace: a, name: b}, spec: {clusterIP: None, externalIPs: ["10.0.0.55", "1000::55"], ports: [{port: 6000}]}}`)
	f.Add(`{metadata: {namespace: a, name: b}, spec: {type: LoadBalancer, clusterIPs: [10.0.0.1], loadBalancerSourceRanges: [10.0.0.0/8, x],
		ports: [{name: p, port: 1, targetPort: q, protocol: UDP}], sessionAffinity: ClientIP, sessionAffinityConfig: {}},
		status: {loadBalancer: {ingress: [{ip: 1.2.3.4, ipMode: VIP}]}}}`)
	f.Add(`{metadata: {name: b/c, namespace: a}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var svc corev1.Service
		if yaml.Unmarshal([]byte(text), &svc) != nil {
			return
		}
		info, _ := (&Config{ServiceLabels: []string{"*"}, ServiceAnnotations: []string{"*"}}).Service(&svc)
		if info == nil {
			return
		}
		ips := info.Service.IPs
		requireIPSet(t, ips.ClusterIPs)
		requireIPSet(t, ips.ExternalIPs)
		requireIPSet(t, ips.LoadBalancerIPs)
		for _, port := range info.Service.Ports {
			require.True(t, isPort(port.Port))
			require.NotEqual(t, port.TargetPort != 0, port.TargetPortName != "", "a target is a number or a name")
			require.NotEqual(t, localv1.Protocol_UnknownProtocol, port.Protocol)
		}
		for _, filter := range info.Service.IPFilters {
			for _, text := range filter.SourceRanges {
				prefix, err := netip.ParsePrefix(text)
				require.NoError(t, err)
				require.Equal(t, prefix.Addr().Is4(), len(filter.TargetIPs.V4) != 0)
			}
		}
		_, err := proto.Marshal(info)
		require.NoError(t, err)
	})
}

func FuzzSlice(f *testing.F) {
	f.Add(`{metadata: {namespace: a, name: b-1, labels: {kubernetes.io/service-name: b}}, addressType: IPv4,
		ports: [{name: p, port: 1}, {}], endpoints: [{addresses: [10.0.0.1], conditions: {ready: false}, hints: {forZones: [{name: z}]}}, {}]}`)
	f.Add(`{metadata: {namespace: a, name: b-1, labels: {kubernetes.io/service-name: b}}, addressType: IPv6, endpoints: [{addresses: ["1::", "::ffff:1.2.3.4"]}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var es discoveryv1.EndpointSlice
		if yaml.Unmarshal([]byte(text), &es) != nil {
			return
		}
		slice, _ := Slice(&es)
		if slice == nil {
			return
		}
		for _, info := range slice.Endpoints {
			ips := info.Endpoint.IPs
			requireIPSet(t, ips)
			require.NotZero(t, len(ips.V4)+len(ips.V6))
			require.True(t, len(ips.V4) == 0 || len(ips.V6) == 0, "an endpoint has one family")
			for _, port := range info.Endpoint.PortOverrides {
				require.True(t, isPort(port.Port))
			}
			_, err := proto.Marshal(info)
			require.NoError(t, err)
		}
	})
}
