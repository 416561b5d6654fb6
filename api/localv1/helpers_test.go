// SPDX-License-Identifier: Apache-2.0

package localv1

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEndpointPortMapping(t *testing.T) {
	named := []*PortName{{Name: "metrics", Port: 1011}, {Name: "http2", Port: 888}, nil, {Name: "void"}}
	unnamed := []*PortName{{Port: 9090}}

	for _, tc := range []struct {
		name      string
		overrides []*PortName
		port      *PortMapping
		want      int32
		wantErr   string
	}{
		{name: "by name", overrides: named, port: &PortMapping{Name: "metrics"}, want: 1011},
		{name: "name before target number", overrides: named, port: &PortMapping{Name: "metrics", TargetPort: 80}, want: 1011},
		{name: "name before target name", overrides: named, port: &PortMapping{Name: "metrics", TargetPortName: "http2"}, want: 1011},
		{name: "by target name", overrides: named, port: &PortMapping{TargetPortName: "metrics", TargetPort: 80}, want: 1011},
		{name: "a named port that the endpoint lacks", overrides: named, port: &PortMapping{Name: "http", Port: 80, TargetPort: 8080}, wantErr: `port 80: the endpoint has no port named "http"`},
		{name: "its target name is no way out", overrides: named, port: &PortMapping{Name: "http", TargetPortName: "metrics"}, wantErr: `"http"`},
		{name: "a target name that the endpoint lacks", overrides: named, port: &PortMapping{TargetPortName: "t", TargetPort: 8080}, wantErr: `"t"`},
		{name: "without a number", overrides: named, port: &PortMapping{Name: "void"}, wantErr: `"void"`},
		{name: "unnamed", overrides: unnamed, port: &PortMapping{Port: 80}, want: 9090},
		{name: "unnamed, the endpoint's own number wins", overrides: unnamed, port: &PortMapping{TargetPort: 80}, want: 9090},
		{name: "unnamed with a target name", overrides: unnamed, port: &PortMapping{TargetPortName: "http"}, want: 9090},
		{name: "named, unnamed override is another port", overrides: unnamed, port: &PortMapping{Name: "http"}, wantErr: `"http"`},
		{name: "unnamed, named overrides", overrides: named, port: &PortMapping{TargetPort: 8080}, want: 8080},
		{name: "target number", port: &PortMapping{TargetPort: 8080}, want: 8080},
		{name: "nothing", port: &PortMapping{Port: 80}, wantErr: "port 80: neither"},
		{name: "negative target", port: &PortMapping{Port: 80, TargetPort: -1}, wantErr: "port 80"},
		{name: "nil", overrides: named, wantErr: "port 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := (&Endpoint{PortOverrides: tc.overrides}).PortMapping(tc.port)
			require.Equal(t, tc.want, got)
			if tc.wantErr == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.wantErr)
			}
		})
	}
}

func TestEndpointPortMappings(t *testing.T) {
	ep := &Endpoint{PortOverrides: []*PortName{{Name: "http", Port: 8080}, {Name: "dns", Port: 5353}}}
	ports := []*PortMapping{{Name: "http", Port: 80}, {Name: "dns", Port: 53}, {Name: "gone", Port: 1}, nil}
	require.Equal(t, map[int32]int32{80: 8080, 53: 5353}, ep.PortMappings(ports))
	require.Equal(t, map[string]int32{"http": 8080, "dns": 5353}, ep.PortNameMappings(ports))
	require.Empty(t, (*Endpoint)(nil).PortMappings(ports))
}

func TestEndpointAddAddress(t *testing.T) {
	ep := &Endpoint{}
	require.Nil(t, ep.AddAddress("nope"))
	require.Equal(t, "10.1.2.3", ep.AddAddress("10.1.2.3").String())
	require.NotNil(t, ep.AddAddress("1::2"))
	require.Equal(t, []string{"10.1.2.3", "1::2"}, ep.IPs.All())
}

func TestServiceHelpers(t *testing.T) {
	require.Equal(t, "ns/name", (&Service{Namespace: "ns", Name: "name"}).NamespacedName())

	ips := &ServiceIPs{ClusterIPs: NewIPSet("10.0.0.1", "1::1"), ExternalIPs: NewIPSet("10.0.0.2"), LoadBalancerIPs: NewIPSet("10.0.0.2", "1::3")}
	require.Equal(t, []string{"10.0.0.1", "10.0.0.2", "1::1", "1::3"}, ips.All().All())
	require.Equal(t, []string{"10.0.0.2", "1::3"}, ips.AllIngress().All())
	ips.All().Add("9.9.9.9")
	require.Equal(t, []string{"10.0.0.1", "1::1"}, ips.ClusterIPs.All(), "All shares memory with the service")

	var none *ServiceIPs
	require.True(t, none.All().IsEmpty())
	require.True(t, none.AllIngress().IsEmpty())
}

func TestSrcPorts(t *testing.T) {
	require.Equal(t, []int32{}, (&PortMapping{}).SrcPorts())
	require.Equal(t, []int32{80}, (&PortMapping{Port: 80}).SrcPorts())
	require.Equal(t, []int32{30080}, (&PortMapping{NodePort: 30080}).SrcPorts())
	require.Equal(t, []int32{80, 30080}, (&PortMapping{Port: 80, NodePort: 30080}).SrcPorts())
}

func TestParseProtocol(t *testing.T) {
	for s, want := range map[string]Protocol{"TCP": Protocol_TCP, "UDP": Protocol_UDP, "SCTP": Protocol_SCTP, "": 0, "tcp": 0, "ICMP": 0} {
		require.Equal(t, want, ParseProtocol(s), s)
	}
}

func TestScopesAny(t *testing.T) {
	require.False(t, (*EndpointScopes)(nil).Any())
	require.False(t, (&EndpointScopes{}).Any())
	require.True(t, (&EndpointScopes{Internal: true}).Any())
	require.True(t, (&EndpointScopes{External: true}).Any())
}
