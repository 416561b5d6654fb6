// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kpng/api/globalv1"
)

func TestService(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		problems       []string
	}{{
		name: "the walk-through's",
		in: `
metadata: {namespace: default, name: kpng-example, labels: {service.kubernetes.io/service-proxy-name: kpng-example}}
spec:
  type: ClusterIP
  clusterIP: None
  clusterIPs: [None]
  ipFamilyPolicy: RequireDualStack
  externalIPs: ["10.0.0.55", "1000::55"]
  selector: {app: kpng-alpine}
  ports: [{port: 6000, protocol: TCP, targetPort: 6000}]`,
		want: `
Service:
  Namespace: default
  Name: kpng-example
  Type: ClusterIP
  IPs: {ClusterIPs: {}, ExternalIPs: {V4: [10.0.0.55], V6: ["1000::55"]}, Headless: true}
  Ports: [{Protocol: TCP, Port: 6000, TargetPort: 6000}]`,
	}, {
		name: "what the API server would have filled in",
		in: `
metadata: {namespace: a, name: b}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}, {port: 81, targetPort: ""}]}`,
		want: `
Service:
  Namespace: a
  Name: b
  Type: ClusterIP
  IPs: {ClusterIPs: {V4: [10.96.0.1]}, ExternalIPs: {}}
  Ports: [{Protocol: TCP, Port: 80, TargetPort: 80}, {Protocol: TCP, Port: 81, TargetPort: 81}]`,
	}, {
		name: "every field",
		in: `
metadata: {namespace: a, name: b, creationTimestamp: "2026-01-02T03:04:05Z", annotations: {kpng.sigs.k8s.io/map-ip: "true"}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd00::1"]
  ports:
  - {name: web, port: 80, targetPort: http, nodePort: 30080, appProtocol: http}
  - {name: dns, port: 53, targetPort: 5353, protocol: UDP}
  - {name: sig, port: 99, targetPort: 99, protocol: SCTP}
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 30999
  publishNotReadyAddresses: true
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
status: {loadBalancer: {ingress: [{ip: 192.0.2.9}, {ip: 192.0.2.8, ipMode: VIP}, {ip: 192.0.2.7, ipMode: Proxy}, {hostname: x}]}}`,
		want: `
Service:
  Namespace: a
  Name: b
  Type: LoadBalancer
  MapIP: true
  IPs: {ClusterIPs: {V4: [10.96.0.1], V6: ["fd00::1"]}, ExternalIPs: {}, LoadBalancerIPs: {V4: [192.0.2.8, 192.0.2.9]}}
  Ports:
  - {Name: web, Protocol: TCP, Port: 80, TargetPortName: http, NodePort: 30080}
  - {Name: dns, Protocol: UDP, Port: 53, TargetPort: 5353}
  - {Name: sig, Protocol: SCTP, Port: 99, TargetPort: 99}
  ExternalTrafficToLocal: true
  InternalTrafficToLocal: true
  HealthCheckNodePort: 30999
  ClientIP: {TimeoutSeconds: 60}
CreatedAt: 1767323045
PublishNotReadyAddresses: true`,
	}, {
		name: "policies Cluster, affinity None, map-ip not true",
		in: `
metadata: {namespace: a, name: b, annotations: {kpng.sigs.k8s.io/map-ip: "yes"}}
spec: {type: NodePort, externalTrafficPolicy: Cluster, internalTrafficPolicy: Cluster, sessionAffinity: None}`,
		want: `
Service: {Namespace: a, Name: b, Type: NodePort, IPs: {ClusterIPs: {}, ExternalIPs: {}}}`,
	}, {
		name: "affinity without configuration",
		in:   `{metadata: {namespace: a, name: b}, spec: {sessionAffinity: ClientIP}}`,
		want: `
Service: {Namespace: a, Name: b, Type: ClusterIP, IPs: {ClusterIPs: {}, ExternalIPs: {}}, ClientIP: {TimeoutSeconds: 10800}}`,
	}, {
		name: "affinity with half a configuration",
		in:   `{metadata: {namespace: a, name: b}, spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {}}}}`,
		want: `
Service: {Namespace: a, Name: b, Type: ClusterIP, IPs: {ClusterIPs: {}, ExternalIPs: {}}, ClientIP: {TimeoutSeconds: 10800}}`,
	}, {
		name: "affinity out of range",
		in: `
metadata: {namespace: a, name: b}
spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}}`,
		want: `
Service: {Namespace: a, Name: b, Type: ClusterIP, IPs: {ClusterIPs: {}, ExternalIPs: {}}, ClientIP: {TimeoutSeconds: 10800}}`,
		problems: []string{"timeoutSeconds 86401 is not in 1..86400"},
	}, {
		name: "malformed addresses",
		in: `
metadata: {namespace: a, name: b}
spec:
  clusterIPs: [10.96.0.1, nonsense]
  externalIPs: [192.0.2.1, 010.0.0.1, "fe80::1%eth0", "::ffff:192.0.2.1", "2001:DB8:0::1", "", 192.0.2.0]
status: {loadBalancer: {ingress: [{ip: 300.0.0.1}]}}`,
		want: `
Service:
  Namespace: a
  Name: b
  Type: ClusterIP
  IPs: {ClusterIPs: {V4: [10.96.0.1]}, ExternalIPs: {V4: [192.0.2.0, 192.0.2.1], V6: ["2001:db8::1"]}}`,
		problems: []string{
			`spec.clusterIPs[1] "nonsense"`,
			`spec.externalIPs[1] "010.0.0.1"`, `spec.externalIPs[2] "fe80::1%eth0"`, `spec.externalIPs[5] ""`,
			`status.loadBalancer.ingress[0] "300.0.0.1"`,
		},
	}, {
		name: "malformed and duplicate ports",
		in: `
metadata: {namespace: a, name: b}
spec:
  ports:
  - {port: 80}
  - {port: 80, protocol: TCP}
  - {port: 80, protocol: UDP}
  - {port: 80, targetPort: 8080}
  - {port: 81, protocol: QUIC}
  - {port: 0}
  - {port: 65536}
  - {port: 82, targetPort: -1}
  - {port: 83, nodePort: 70000}`,
		want: `
Service:
  Namespace: a
  Name: b
  Type: ClusterIP
  IPs: {ClusterIPs: {}, ExternalIPs: {}}
  Ports: [{Protocol: TCP, Port: 80, TargetPort: 80}, {Protocol: UDP, Port: 80, TargetPort: 80}, {Protocol: TCP, Port: 83, TargetPort: 83}]`,
		problems: []string{
			"spec.ports[3]: port 80/TCP is there twice", `spec.ports[4].protocol "QUIC"`, "spec.ports[5].port 0",
			"spec.ports[6].port 65536", "spec.ports[7].targetPort -1", "spec.ports[8].nodePort 70000",
		},
	}, {
		name:     "a health check port out of range",
		in:       `{metadata: {namespace: a, name: b}, spec: {healthCheckNodePort: -5}}`,
		want:     `{Service: {Namespace: a, Name: b, Type: ClusterIP, IPs: {ClusterIPs: {}, ExternalIPs: {}}}}`,
		problems: []string{"spec.healthCheckNodePort -5"},
	}, {
		name: "external name",
		in:   `{metadata: {namespace: a, name: b}, spec: {type: ExternalName, externalName: example.org}}`,
	}, {
		name:     "a name that is none",
		in:       `{metadata: {namespace: a, name: b/c}}`,
		problems: []string{`namespace "a" and name "b/c"`},
	}, {
		name:     "nothing at all",
		in:       `{}`,
		problems: []string{"must be there"},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := (&Config{}).Service(object[corev1.Service](t, tc.in))
			requireProblems(t, tc.problems, problems)
			if tc.want == "" {
				require.Nil(t, got)
				return
			}
			requireSame(t, parse(t, tc.want, &globalv1.ServiceInfo{}), got)
			require.NotNil(t, got.Service.IPs.ClusterIPs, "backends read it without asking")
			require.NotNil(t, got.Service.IPs.ExternalIPs, "backends read it without asking")
		})
	}
}

func TestSourceRanges(t *testing.T) {
	const dualStack = `status: {loadBalancer: {ingress: [{ip: 192.0.2.9}, {ip: "2001:db8::9"}, {ip: 192.0.2.7, ipMode: Proxy}]}}`
	const v4Target, v6Target = `TargetIPs: {V4: [192.0.2.9]}`, `TargetIPs: {V6: ["2001:db8::9"]}`
	for _, tc := range []struct {
		name, in, want string
		problems       []string
	}{{
		name: "none", in: `spec: {}`, want: `{}`,
	}, {
		name: "both families, trimmed, canonical, once each",
		in:   `spec: {loadBalancerSourceRanges: [" 10.1.2.3/8 ", "2001:DB8::/32", 10.0.0.0/8, 9.0.0.0/8]}`,
		want: `IPFilters: [{` + v4Target + `, SourceRanges: [10.0.0.0/8, 9.0.0.0/8]}, {` + v6Target + `, SourceRanges: ["2001:db8::/32"]}]`,
	}, {
		name: "the other family stays closed",
		in:   `spec: {loadBalancerSourceRanges: [10.0.0.0/8]}`,
		want: `IPFilters: [{` + v4Target + `, SourceRanges: [10.0.0.0/8]}, {` + v6Target + `}]`,
	}, {
		name:     "nothing valid is nothing allowed",
		in:       `spec: {loadBalancerSourceRanges: [10.0.0.0, 010.0.0.0/8, "", "::ffff:10.0.0.0/104"]}`,
		want:     `IPFilters: [{` + v4Target + `}, {` + v6Target + `}]`,
		problems: []string{`[0] "10.0.0.0" is not a CIDR`, `[1] "010.0.0.0/8"`, `[2] ""`, `[3] "::ffff`},
	}, {
		name: "the annotation that preceded the field",
		in:   `metadata: {namespace: a, name: b, annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: " 10.0.0.0/8, ::/0 "}}`,
		want: `IPFilters: [{` + v4Target + `, SourceRanges: [10.0.0.0/8]}, {` + v6Target + `, SourceRanges: ["::/0"]}]`,
	}, {
		name: "the field comes before the annotation",
		in: `
metadata: {namespace: a, name: b, annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: 0.0.0.0/0}}
spec: {loadBalancerSourceRanges: ["10.0.0.0/8", "::/0"]}`,
		want: `IPFilters: [{` + v4Target + `, SourceRanges: [10.0.0.0/8]}, {` + v6Target + `, SourceRanges: ["::/0"]}]`,
	}, {
		name: "an empty annotation restricts nothing",
		in:   `metadata: {namespace: a, name: b, annotations: {service.beta.kubernetes.io/load-balancer-source-ranges: " "}}`,
		want: `{}`,
	}} {
		t.Run(tc.name, func(t *testing.T) {
			svc := object[corev1.Service](t, tc.in+"\n"+dualStack)
			svc.Namespace, svc.Name = "a", "b"
			got, problems := (&Config{}).Service(svc)
			requireProblems(t, tc.problems, problems)
			want := parse(t, "Service:\n  Namespace: a\n  Name: b\n  Type: ClusterIP\n"+
				"  IPs: {ClusterIPs: {}, ExternalIPs: {}, LoadBalancerIPs: {V4: [192.0.2.9], V6: [\"2001:db8::9\"]}}", &globalv1.ServiceInfo{})
			want.Service.IPFilters = parse(t, "Service: {"+trimBraces(tc.want)+"}", &globalv1.ServiceInfo{}).Service.IPFilters
			requireSame(t, want, got)
		})
	}
	t.Run("without load-balancer addresses there is nothing to filter", func(t *testing.T) {
		got, problems := (&Config{}).Service(object[corev1.Service](t,
			`{metadata: {namespace: a, name: b}, spec: {loadBalancerSourceRanges: [10.0.0.0/8]}}`))
		require.Empty(t, problems)
		require.Empty(t, got.Service.IPFilters)
	})
}

func trimBraces(s string) string {
	if s == "{}" {
		return ""
	}
	return s
}

func TestServiceMetadata(t *testing.T) {
	const in = `
metadata:
  namespace: a
  name: b
  labels: {app: x, app.kubernetes.io/name: n1, team: z}
  annotations: {example.org/a: "1", example.org/b: "2"}`
	for _, tc := range []struct {
		name                string
		labels, annotations []string
		wantLabels          map[string]string
		wantAnnotations     map[string]string
	}{
		{name: "none by default"},
		{name: "globs", labels: []string{"t?am", "app.*/*"}, annotations: []string{"example.org/[b-z]"},
			wantLabels: map[string]string{"team": "z", "app.kubernetes.io/name": "n1"}, wantAnnotations: map[string]string{"example.org/b": "2"}},
		{name: "a star alone is everything", labels: []string{"*"},
			wantLabels: map[string]string{"app": "x", "app.kubernetes.io/name": "n1", "team": "z"}},
		{name: "no match is no map", labels: []string{"nothing"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := (&Config{ServiceLabels: tc.labels, ServiceAnnotations: tc.annotations}).Service(object[corev1.Service](t, in))
			require.Empty(t, problems)
			require.Equal(t, tc.wantLabels, got.Service.Labels)
			require.Equal(t, tc.wantAnnotations, got.Service.Annotations)
		})
	}
}
