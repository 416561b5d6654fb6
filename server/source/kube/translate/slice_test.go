// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kpng/api/globalv1"
)

func TestSlice(t *testing.T) {
	const meta = "metadata: {namespace: a, name: b-1, labels: {kubernetes.io/service-name: b}}\n"
	for _, tc := range []struct {
		name, in string
		want     []string // endpoints, without what is the same for all
		none     bool     // no slice at all
		headless bool
		problems []string
	}{{
		name: "one endpoint, everything said",
		in: meta + `
addressType: IPv4
ports: [{name: web, port: 8080, protocol: TCP}, {name: "", port: 53}]
endpoints:
- addresses: [10.1.0.1]
  conditions: {ready: true, serving: true, terminating: false}
  hostname: pod-0
  nodeName: node-1
  zone: z1
  targetRef: {kind: Pod, namespace: a, name: pod-0}
  hints: {forZones: [{name: z2}, {name: z1}, {name: z2}], forNodes: [{name: node-1}, {name: ""}]}`,
		want: []string{`
Endpoint: {Hostname: pod-0, IPs: {V4: [10.1.0.1]}, PortOverrides: [{Port: 53}, {Name: web, Port: 8080}]}
Conditions: {Ready: true, Serving: true}
PodName: pod-0
Topology: {Node: node-1, Zone: z1}
Hints: {Zones: [z1, z2], Nodes: [node-1]}`},
	}, {
		name: "nothing said",
		in:   meta + "addressType: IPv6\nendpoints: [{addresses: ['2001:DB8::1']}]",
		want: []string{`{Endpoint: {IPs: {V6: ["2001:db8::1"]}}, Conditions: {Ready: true, Serving: true}}`},
	}, {
		name: "conditions",
		in: meta + `
addressType: IPv4
endpoints:
- {addresses: [10.1.0.1], conditions: {ready: false}}
- {addresses: [10.1.0.2], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.1.0.3], conditions: {ready: true, serving: false}}
- {addresses: [10.1.0.4], conditions: {serving: false, terminating: true}}`,
		want: []string{
			`{Endpoint: {IPs: {V4: [10.1.0.1]}}, Conditions: {}}`,
			`{Endpoint: {IPs: {V4: [10.1.0.2]}}, Conditions: {Serving: true, Terminating: true}}`,
			`{Endpoint: {IPs: {V4: [10.1.0.3]}}, Conditions: {Ready: true}}`,
			`{Endpoint: {IPs: {V4: [10.1.0.4]}}, Conditions: {Ready: true, Terminating: true}}`,
		},
	}, {
		name: "all addresses of an endpoint, those of its family",
		in: meta + `
addressType: IPv4
endpoints:
- addresses: [10.1.0.2, 10.1.0.1, 10.1.0.2, "2001:db8::1", nonsense, "::ffff:10.1.0.3"]
- addresses: ["2001:db8::2"]
- {}`,
		want: []string{`{Endpoint: {IPs: {V4: [10.1.0.1, 10.1.0.2, 10.1.0.3]}}, Conditions: {Ready: true, Serving: true}}`},
		problems: []string{
			`endpoints[0].addresses[3] "2001:db8::1" is not of addressType IPv4`, `endpoints[0].addresses[4] "nonsense"`,
			`endpoints[1].addresses[0] "2001:db8::2" is not of addressType IPv4`,
		},
	}, {
		name: "ports without name or number, twice, out of range",
		in: meta + `
addressType: IPv4
ports: [{}, {port: 1}, {port: 1}, {port: 2}, {name: x}, {name: y, port: 0}, {name: w, port: 70000}, {name: a, port: 3}]
endpoints: [{addresses: [10.1.0.1]}]`,
		want: []string{`
Endpoint: {IPs: {V4: [10.1.0.1]}, PortOverrides: [{Port: 1}, {Name: a, Port: 3}]}
Conditions: {Ready: true, Serving: true}`},
		problems: []string{`ports[3]: port name "" is there twice`, "ports[5].port 0", "ports[6].port 70000"},
	}, {
		name: "another reference than to a pod, empty hints",
		in: meta + `
addressType: IPv4
endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Node, name: x}, hints: {}}]`,
		want: []string{`{Endpoint: {IPs: {V4: [10.1.0.1]}}, Conditions: {Ready: true, Serving: true}}`},
	}, {
		name: "no endpoints", in: meta + `addressType: IPv4`,
	}, {
		name: "no service", in: `{metadata: {namespace: a, name: b-1}, addressType: IPv4, endpoints: [{addresses: [10.1.0.1]}]}`, none: true,
	}, {
		name: "host names", in: meta + "addressType: FQDN\nendpoints: [{addresses: [example.org]}]", none: true,
		problems: []string{`addressType "FQDN"`},
	}, {
		name: "of a headless service", headless: true,
		in: `{metadata: {namespace: a, name: b-1, labels: {kubernetes.io/service-name: b, service.kubernetes.io/headless: ""}}, addressType: IPv4}`,
	}, {
		name: "no address type", in: meta + `endpoints: [{addresses: [10.1.0.1]}]`, none: true,
		problems: []string{`addressType ""`},
	}, {
		name:     "a service that cannot be",
		in:       `{metadata: {namespace: a, name: b-1, labels: {kubernetes.io/service-name: b/c}}, addressType: IPv4}`,
		none:     true,
		problems: []string{"is not the name of a service"},
	}, {
		name: "no namespace", in: `{metadata: {name: b-1, labels: {kubernetes.io/service-name: b}}, addressType: IPv4}`, none: true,
		problems: []string{"must be there"},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := Slice(object[discoveryv1.EndpointSlice](t, tc.in))
			requireProblems(t, tc.problems, problems)
			if tc.none {
				require.Nil(t, got)
				return
			}
			require.Equal(t, tc.headless, got.Headless)
			require.Equal(t, []string{"a", "b-1", "b"}, []string{got.Namespace, got.Name, got.Service})
			require.Len(t, got.Endpoints, len(tc.want))
			for i, text := range tc.want {
				want := parse(t, text, &globalv1.EndpointInfo{})
				want.Namespace, want.SourceName, want.ServiceName = "a", "b-1", "b"
				requireSame(t, want, got.Endpoints[i])
			}
		})
	}
}
