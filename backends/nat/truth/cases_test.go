// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
)

// addresses from outside that a service has.
func (s *service) fromOutside() []target {
	return []target{s.nodePort, s.externalIP, s.loadBalancerIP}
}

func externalLocal(s *corev1.ServiceSpec) {
	s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func internalLocal(s *corev1.ServiceSpec) {
	policy := corev1.ServiceInternalTrafficPolicyLocal
	s.InternalTrafficPolicy = &policy
}

func bothLocal(s *corev1.ServiceSpec) {
	externalLocal(s)
	internalLocal(s)
}

func cases() *table {
	t := &table{}
	for _, c := range []struct {
		name string
		add  func(*table)
	}{
		{"cluster IP", clusterIPs},
		{"target ports", targetPorts},
		{"from outside", fromOutside},
		{"external policy Local", localWithPods},
		{"external policy Local without a pod here", localWithoutPods},
		{"internal policy Local", internalPolicy},
		{"both policies Local", bothPolicies},
		{"no endpoints", noEndpoints},
		{"terminating endpoints", terminatingEndpoints},
		{"not ready", notReady},
		{"source ranges", sourceRanges},
		{"a load balancer's IP on the node", ownLoadBalancer},
		{"shared addresses", sharedAddresses},
		{"session affinity", affinity},
		{hintsKind, hints},
	} {
		t.kind = c.name
		c.add(t)
	}
	return t
}

func clusterIPs(t *table) {
	local := t.service("cluster-local", spec{endpoints: at("n1-a")})
	t.ask("n1-b", local, local.clusterIP, by{"n1-a": "n1-b"})
	t.ask("n1-a", local, local.clusterIP, by{"n1-a": "n1"}) // hairpin
	t.ask("n1", local, local.clusterIP, by{"n1-a": "n1"})
	t.ask("n2-b", local, local.clusterIP, by{"n1-a": "n2-b"})
	t.ask("client", local, local.clusterIP, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("n1-b", local, local.clusterIP, nothing).in(nstest.ICMP)
	t.ask("client", local, local.clusterIP, nothing).in(nstest.ICMP)
	t.ask("n1-b", local, local.clusterIP.on(81), silence).in(nstest.TCP, nstest.UDP).with(kubeProxyNFTables, unknownPort, refused)

	remote := t.service("cluster-remote", spec{endpoints: at("n2-a")})
	t.ask("n1-b", remote, remote.clusterIP, by{"n2-a": "n1-b"})
	t.ask("n1", remote, remote.clusterIP, by{"n2-a": "n1"})
	t.ask("client", remote, remote.clusterIP, by{"n2-a": "n1"})

	several := t.service("cluster-several", spec{endpoints: at("n1-a", "n1-b", "n2-a")})
	t.ask("n1-c", several, several.clusterIP, by{"n1-a": "n1-c", "n1-b": "n1-c", "n2-a": "n1-c"})
	t.ask("n1-a", several, several.clusterIP, by{"n1-a": "n1", "n1-b": "n1-a", "n2-a": "n1-a"})
}

// targetPorts are those of the slices: of each pod another, or of each protocol another pod.
func targetPorts(t *table) {
	named := t.service("target-ports", spec{endpoints: []endpoint{
		{pod: "n1-b", port: onlyServedBy["n1-b"]}, {pod: "n2-a", port: onlyServedBy["n2-a"]},
	}})
	t.ask("n1-a", named, named.clusterIP, by{"n1-b": "n1-a", "n2-a": "n1-a"})
	t.ask("n1", named, named.clusterIP, by{"n1-b": "n1", "n2-a": "n1"})

	split := t.service("protocols", spec{outside: true, endpoints: []endpoint{
		{pod: "n1-a", only: "tcp"}, {pod: "n1-b", only: "udp"},
	}})
	for protocol, pod := range map[string]string{nstest.TCP: "n1-a", nstest.UDP: "n1-b"} {
		t.ask("n1-c", split, split.clusterIP, by{pod: "n1-c"}).in(protocol)
		t.ask("client", split, split.nodePort, by{pod: "client"}).in(protocol).with(kubeProxy, hidesClients, by{pod: "n1"})
	}
}

func fromOutside(t *table) {
	near := t.service("near", spec{outside: true, endpoints: at("n1-a")})
	far := t.service("far", spec{outside: true, endpoints: at("n2-a")})
	for i := range near.fromOutside() {
		near, to := near, near.fromOutside()[i]
		t.ask("client", near, to, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
		t.ask("n1-b", near, to, by{"n1-a": "n1-b"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
		t.ask("n1-a", near, to, by{"n1-a": "n1"}) // hairpin
		t.ask("n1", near, to, by{"n1-a": "n1"})
		t.ask("n2-b", near, to, by{"n1-a": "n2-b"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})

		to = far.fromOutside()[i]
		t.ask("client", far, to, by{"n2-a": "n1"})
		t.ask("n1", far, to, by{"n2-a": "n1"})
	}
	// A pod may well be answered by a pod elsewhere, if its own packets all pass its own node.
	t.ask("n1-b", far, far.nodePort, by{"n2-a": "n1"})
	t.ask("n2-b", far, far.nodePort, by{"n2-a": "n1"})
	for _, to := range far.fromOutside()[1:] {
		t.ask("n1-b", far, to, by{"n2-a": "n1-b"}).with(kubeProxy, hidesClients, by{"n2-a": "n1"})
	}
	t.ask("n1", near, near.nodePort.loopback(), refused).in(nstest.TCP, nstest.UDP).only(v6)
	t.ask("n1", near, near.nodePort.loopback(), refused).in(nstest.TCP, nstest.UDP).only(v4).with(kubeProxyIPTables, onLoopback, by{"n1-a": "n1"})
	t.ask("n1-b", near, near.nodePort.of("n2"), refused).in(nstest.TCP, nstest.UDP) // another node's
	t.ask("n1-b", near, near.nodePort.of("client"), refused).in(nstest.TCP, nstest.UDP)
	t.ask("n1-b", near, near.externalIP, nothing).in(nstest.ICMP)
}

// localWithPods: what comes from outside stays here and is seen; what comes from the cluster need not.
func localWithPods(t *table) {
	s := t.service("local", spec{outside: true, change: externalLocal, endpoints: at("n1-a", "n2-a")})
	for _, to := range s.fromOutside() {
		t.ask("client", s, to, by{"n1-a": "client"})
		t.ask("n1", s, to, by{"n1-a": "n1", "n2-a": "n1"})
		t.ask("n1-b", s, to, by{"n1-a": "n1-b", "n2-a": "n1-b"})
		t.ask("n1-a", s, to, by{"n1-a": "n1", "n2-a": "n1-a"}) // hairpin
	}
	t.ask("client", s, s.clusterIP, by{"n1-a": "client", "n2-a": "n1"}).with(kubeProxy, hidesClients, by{"n1-a": "n1", "n2-a": "n1"})
	t.ask("n1-b", s, s.clusterIP, by{"n1-a": "n1-b", "n2-a": "n1-b"})
}

func localWithoutPods(t *table) {
	s := t.service("local-none-here", spec{outside: true, change: externalLocal, endpoints: at("n2-a")})
	for _, to := range s.fromOutside() {
		t.ask("client", s, to, silence)
		t.ask("n1", s, to, by{"n2-a": "n1"})
		t.ask("n1-b", s, to, by{"n2-a": "n1-b"})
	}
	nodeless := t.service("local-of-no-node", spec{outside: true, change: externalLocal, endpoints: []endpoint{{pod: "n1-a", nodeless: true}}})
	t.ask("client", nodeless, nodeless.loadBalancerIP, silence)
	t.ask("n1-b", nodeless, nodeless.loadBalancerIP, by{"n1-a": "n1-b"})

	// A pod elsewhere is answered past this node, and does not take that for an answer.
	t.ask("n2-b", s, s.nodePort, nothing)
}

func internalPolicy(t *table) {
	here := t.service("internal-here", spec{outside: true, change: internalLocal, endpoints: at("n1-a", "n2-a")})
	t.ask("n1-b", here, here.clusterIP, by{"n1-a": "n1-b"})
	t.ask("n1-a", here, here.clusterIP, by{"n1-a": "n1"})
	t.ask("n1", here, here.clusterIP, by{"n1-a": "n1"})
	t.ask("client", here, here.nodePort, by{"n1-a": "client", "n2-a": "n1"}).with(kubeProxy, hidesClients, by{"n1-a": "n1", "n2-a": "n1"})

	elsewhere := t.service("internal-elsewhere", spec{outside: true, change: internalLocal, endpoints: at("n2-a")})
	for _, from := range []string{"n1-b", "client"} {
		t.ask(from, elsewhere, elsewhere.clusterIP, silence)
	}
	t.ask("n1", elsewhere, elsewhere.clusterIP, nothing)
	t.ask("client", elsewhere, elsewhere.externalIP, by{"n2-a": "n1"})
}

func bothPolicies(t *table) {
	here := t.service("both-here", spec{outside: true, change: bothLocal, endpoints: at("n1-a", "n2-a")})
	t.ask("n1-b", here, here.clusterIP, by{"n1-a": "n1-b"})
	t.ask("client", here, here.loadBalancerIP, by{"n1-a": "client"})
	t.ask("n1-b", here, here.loadBalancerIP, by{"n1-a": "n1-b", "n2-a": "n1-b"})
	t.ask("n1", here, here.externalIP, by{"n1-a": "n1", "n2-a": "n1"})

	elsewhere := t.service("both-elsewhere", spec{outside: true, change: bothLocal, endpoints: at("n2-a")})
	t.ask("n1-b", elsewhere, elsewhere.clusterIP, silence)
	t.ask("client", elsewhere, elsewhere.loadBalancerIP, silence)
	t.ask("n1-b", elsewhere, elsewhere.loadBalancerIP, by{"n2-a": "n1-b"})
	t.ask("n1", elsewhere, elsewhere.loadBalancerIP, by{"n2-a": "n1"})
}

func noEndpoints(t *table) {
	for name, change := range map[string]func(*corev1.ServiceSpec){
		"none": nil, "none-local": externalLocal, "none-internal": internalLocal, "none-both": bothLocal,
	} {
		s := t.service(name, spec{outside: true, change: change})
		for _, from := range []string{"client", "n1-b", "n1"} {
			for _, to := range []target{s.clusterIP, s.nodePort} {
				t.ask(from, s, to, refused)
			}
			for _, to := range []target{s.externalIP, s.loadBalancerIP} {
				r := t.ask(from, s, to, refused)
				if from == "n1" {
					r.with(kubeProxyIPTables, nodeUnrefused, nothing)
				}
			}
		}
	}
}

// terminatingEndpoints are used where there is nothing better.
func terminatingEndpoints(t *table) {
	only := t.service("terminating", spec{outside: true, endpoints: terminating("n1-a", "n2-a")})
	t.ask("n1-b", only, only.clusterIP, by{"n1-a": "n1-b", "n2-a": "n1-b"})
	t.ask("client", only, only.nodePort, by{"n1-a": "client", "n2-a": "n1"}).with(kubeProxy, hidesClients, by{"n1-a": "n1", "n2-a": "n1"})

	mixed := t.service("terminating-mixed", spec{outside: true, endpoints: append(terminating("n1-a", "n2-a"), at("n2-b")...)})
	t.ask("n1-b", mixed, mixed.clusterIP, by{"n2-b": "n1-b"})
	t.ask("client", mixed, mixed.loadBalancerIP, by{"n2-b": "n1"})

	local := t.service("terminating-local", spec{outside: true, change: bothLocal, endpoints: append(terminating("n1-a"), at("n2-b")...)})
	t.ask("n1-b", local, local.clusterIP, by{"n1-a": "n1-b"})
	t.ask("client", local, local.loadBalancerIP, by{"n1-a": "client"})
	t.ask("n1-b", local, local.loadBalancerIP, by{"n2-b": "n1-b"})

	mute := t.service("terminating-mute", spec{outside: true, endpoints: []endpoint{
		{pod: "n1-a", notReady: true, notServing: true, terminating: true},
	}})
	t.ask("n1-b", mute, mute.clusterIP, refused)
	t.ask("client", mute, mute.nodePort, refused)
}

func notReady(t *table) {
	some := t.service("not-ready", spec{endpoints: append([]endpoint{{pod: "n1-a", notReady: true, notServing: true}}, at("n2-a")...)})
	t.ask("n1-b", some, some.clusterIP, by{"n2-a": "n1-b"})
	all := t.service("none-ready", spec{endpoints: []endpoint{{pod: "n1-a", notReady: true, notServing: true}}})
	t.ask("n1-b", all, all.clusterIP, refused)

	// The controller calls all endpoints of such a service ready, whatever else they are.
	anyway := t.service("published", spec{
		outside: true, change: func(s *corev1.ServiceSpec) { s.PublishNotReadyAddresses = true },
		endpoints: []endpoint{{pod: "n1-a", notServing: true, terminating: true}, {pod: "n2-a", notServing: true}},
	})
	t.ask("n1-b", anyway, anyway.clusterIP, by{"n1-a": "n1-b", "n2-a": "n1-b"})
	t.ask("client", anyway, anyway.externalIP, by{"n1-a": "client", "n2-a": "n1"}).with(kubeProxy, hidesClients, by{"n1-a": "n1", "n2-a": "n1"})
}

// ranges lets only these hosts use the load balancer's IP.
func ranges(hosts ...string) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) {
		for _, h := range hosts {
			for _, f := range nstest.Families {
				s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, nstest.Only(f.Addr(h)).String())
			}
		}
	}
}

func sourceRanges(t *table) {
	outside := t.service("ranges-client", spec{outside: true, change: ranges("client"), endpoints: at("n1-a")})
	t.ask("client", outside, outside.loadBalancerIP, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("n1-b", outside, outside.loadBalancerIP, silence)
	t.ask("n1", outside, outside.loadBalancerIP, nothing)
	t.ask("n2-b", outside, outside.externalIP, by{"n1-a": "n2-b"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"}) // not concerned
	t.ask("n2-b", outside, outside.nodePort, by{"n1-a": "n2-b"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("n1-b", outside, outside.clusterIP, by{"n1-a": "n1-b"})

	inside := t.service("ranges-inside", spec{outside: true, change: ranges("n1-b", "n1"), endpoints: at("n1-a")})
	t.ask("client", inside, inside.loadBalancerIP, silence)
	t.ask("n1-b", inside, inside.loadBalancerIP, by{"n1-a": "n1-b"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("n1-c", inside, inside.loadBalancerIP, silence)
	t.ask("n1", inside, inside.loadBalancerIP, by{"n1-a": "n1"})

	half := t.service("ranges-half", spec{outside: true, endpoints: at("n1-a"), change: func(s *corev1.ServiceSpec) {
		s.LoadBalancerSourceRanges = []string{nstest.Only(v4.Addr("client")).String()}
	}})
	t.ask("client", half, half.loadBalancerIP, by{"n1-a": "client"}).only(v4).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("n1-b", half, half.loadBalancerIP, silence).only(v4)
	t.ask("client", half, half.loadBalancerIP, silence).only(v6).with(kubeProxy, halfRanges, by{"n1-a": "n1"})

	local := t.service("ranges-local", spec{
		outside: true, endpoints: at("n1-a"),
		change: func(s *corev1.ServiceSpec) { externalLocal(s); ranges("client")(s) },
	})
	t.ask("client", local, local.loadBalancerIP, by{"n1-a": "client"})
	t.ask("n2-b", local, local.loadBalancerIP, silence)
}

// ownLoadBalancer has the IP among the addresses of the node, as some load balancers want it: the node asks itself with that very
// address as its source.
func ownLoadBalancer(t *table) {
	open := t.service("own", spec{outside: true, onNode: true, endpoints: at("n1-a")})
	t.ask("client", open, open.loadBalancerIP, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("n1", open, open.loadBalancerIP, by{"n1-a": itself}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	admitted := t.service("own-admitted", spec{outside: true, onNode: true, change: ranges("n1"), endpoints: at("n1-a")})
	t.ask("n1", admitted, admitted.loadBalancerIP, by{"n1-a": itself}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("client", admitted, admitted.loadBalancerIP, silence)
	far := t.service("own-far", spec{outside: true, onNode: true, endpoints: at("n2-a")})
	t.ask("n1", far, far.loadBalancerIP, by{"n2-a": "n1"})
	shut := t.service("own-shut", spec{outside: true, onNode: true, change: ranges("client"), endpoints: at("n1-a")})
	t.ask("n1", shut, shut.loadBalancerIP, nothing)

	// The load balancer wants to see all packets itself.
	proxied := t.service("proxied", spec{outside: true, ipMode: corev1.LoadBalancerIPModeProxy, endpoints: at("n1-a")})
	t.ask("client", proxied, proxied.loadBalancerIP, nothing)
	t.ask("n1-b", proxied, proxied.loadBalancerIP, nothing)
	t.ask("n1-b", proxied, proxied.clusterIP, by{"n1-a": "n1-b"})
}

// sharedAddresses are one external IP of two Services with different ports, and an external IP that is the node's.
func sharedAddresses(t *table) {
	first := t.service("shared-first", spec{outside: true, endpoints: at("n1-a")})
	second := t.service("shared-second", spec{outside: true, endpoints: at("n1-b"), change: func(s *corev1.ServiceSpec) {
		s.ExternalIPs = first.externalIP.both()
		for i := range s.Ports {
			s.Ports[i].Port = 85
		}
	}})
	t.ask("client", first, first.externalIP, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("client", second, first.externalIP.on(85), by{"n1-b": "client"}).with(kubeProxy, hidesClients, by{"n1-b": "n1"})

	own := first.externalIP.of("n1").on(86)
	onNode := t.service("node-address", spec{outside: true, endpoints: at("n1-a"), change: func(s *corev1.ServiceSpec) {
		s.ExternalIPs = own.both()
		for i := range s.Ports {
			s.Ports[i].Port = int32(own.port)
		}
	}})
	t.ask("client", onNode, own, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("n1", onNode, own, by{"n1-a": "n1"})
	t.ask("n1-b", onNode, own, by{"n1-a": "n1-b"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
}

func affinity(t *table) {
	s := t.service("affinity", spec{outside: true, endpoints: at("n1-a", "n2-a"), change: func(s *corev1.ServiceSpec) {
		s.SessionAffinity = corev1.ServiceAffinityClientIP
	}})
	t.ask("n1-b", s, s.clusterIP, sticky{by{"n1-a": "n1-b", "n2-a": "n1-b"}})
	t.ask("n1", s, s.clusterIP, sticky{by{"n1-a": "n1", "n2-a": "n1"}})
	for _, to := range s.fromOutside() {
		t.ask("client", s, to, sticky{by{"n1-a": "client", "n2-a": "n1"}}).with(kubeProxy, hidesClients, sticky{by{"n1-a": "n1", "n2-a": "n1"}})
	}
}

const hintsKind = "hints"

// hints keep traffic near where all endpoints have them.
func hints(t *table) {
	zone := func(pod, zone string) endpoint { return endpoint{pod: pod, zones: []string{zone}} }
	zones := t.service("zones", spec{outside: true, endpoints: []endpoint{zone("n1-a", "zone-a"), zone("n2-a", "zone-b")}})
	t.ask("n1-b", zones, zones.clusterIP, by{"n1-a": "n1-b"})
	t.ask("client", zones, zones.externalIP, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})

	nodes := t.service("nodes", spec{endpoints: []endpoint{
		{pod: "n1-a", zones: []string{"zone-a"}, nodes: []string{"n1"}},
		{pod: "n1-b", zones: []string{"zone-a"}, nodes: []string{"n2"}},
	}})
	t.ask("n1-c", nodes, nodes.clusterIP, by{"n1-a": "n1-c"})

	partly := t.service("zones-partly", spec{endpoints: append(at("n2-a"), zone("n1-a", "zone-a"))})
	t.ask("n1-b", partly, partly.clusterIP, by{"n1-a": "n1-b", "n2-a": "n1-b"})

	elsewhere := t.service("zones-elsewhere", spec{endpoints: []endpoint{zone("n1-a", "zone-b"), zone("n2-a", "zone-b")}})
	t.ask("n1-b", elsewhere, elsewhere.clusterIP, by{"n1-a": "n1-b", "n2-a": "n1-b"})
}
