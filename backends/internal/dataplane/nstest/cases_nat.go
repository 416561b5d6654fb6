// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// NATCases are about services with ports.
func NATCases() []Case {
	return []Case{
		bothFamilies("cluster IP", clusterIP),
		bothFamilies("target ports are the targets'", targetPorts),
		bothFamilies("node port", nodePort),
		bothFamilies("node port to other nodes", remoteNodePort),
		bothFamilies("addresses from outside", outsideAddresses),
		bothFamilies("external policy Local", localPolicy),
		bothFamilies("external policy Local without a local pod", localPolicyEmpty),
		bothFamilies("no pods at all", noPods),
		bothFamilies("source ranges", sourceRanges),
		bothFamilies("masquerade always", masqueradeAlways),
		bothFamilies("ports before the whole address", portsFirst),
		bothFamilies("hostile names", hostileNames),
	}
}

// frontend80 is port 80 of an address, served by pods at Port.
func (f Family) frontend80(kind dataplane.Kind, vip netip.Addr, protocol dataplane.Protocol, pods ...string) dataplane.Frontend {
	return dataplane.Frontend{
		Kind: kind, IP: vip, Protocol: protocol, Port: 80,
		Pool: f.pool(Port, pods...), Masquerade: dataplane.NonLocal,
	}
}

// service80 has a frontend for each protocol.
func (f Family) service80(name string, kind dataplane.Kind, vip netip.Addr, pods ...string) *dataplane.Service {
	s := &dataplane.Service{Name: f.Name(name)}
	for _, p := range []dataplane.Protocol{dataplane.TCP, dataplane.UDP, dataplane.SCTP} {
		s.Frontends = append(s.Frontends, f.frontend80(kind, vip, p, pods...))
	}
	return s
}

// ask80 asks port 80 in all protocols that have ports.
func ask80(from string, to netip.Addr, want Want) []Check { return askPort(from, to, 80, want) }

func askPort(from string, to netip.Addr, port uint16, want Want) []Check {
	checks := []Check{ask(from, TCP, to, port, want), ask(from, UDP, to, port, want)}
	big := checks[1]
	big.Size = 4000
	checks = append(checks, big)
	if !SCTPOfKernel() && want.Fail == nil { // how a raw socket learns of a refusal differs
		checks = append(checks, ask(from, SCTP, to, port, want))
	}
	return checks
}

func clusterIP(f Family) Case {
	local, remote := f.VIP(1), f.VIP(2)
	return Case{
		Services: []*dataplane.Service{
			f.service80("local", dataplane.ClusterIP, local, "n1-a"),
			f.service80("remote", dataplane.ClusterIP, remote, "n2-a"),
		},
		Checks: slices.Concat(
			ask80("n1-b", local, by(f.Addr("n1-b"), "n1-a")),
			ask80("n1-a", local, by(f.Addr("n1"), "n1-a")), // hairpin
			ask80("n1", local, by(f.Addr("n1"), "n1-a")),
			ask80("n1-b", remote, by(f.Addr("n1-b"), "n2-a")),
			ask80("n1", remote, by(f.Addr("n1"), "n2-a")),
			// From outside: replies of a pod elsewhere would not come back this way.
			ask80("client", remote, by(f.Addr("n1"), "n2-a")),
			// A port that is not the service's.
			[]Check{ask("n1-b", TCP, local, 81, Want{Fail: anyFailure}), ask("n1-b", UDP, local, 81, Want{Fail: anyFailure})},
		),
	}
}

func anyFailure(err error) bool { return Refused(err) || Unanswered(err) }

func targetPorts(f Family) Case {
	s := f.service80("web", dataplane.ClusterIP, f.VIP(1), "n1-a", "n1-b")
	other := f.service80("other", dataplane.ClusterIP, f.VIP(1), "n2-b")
	for i := range other.Frontends {
		other.Frontends[i].Port = 81
		other.Frontends[i].Pool = f.pool(OtherPort, "n2-b")
	}
	for i := range s.Frontends {
		s.Frontends[i].Pool.Targets[1].Port = OtherPort
	}
	return Case{
		Services: []*dataplane.Service{s, other},
		Checks: slices.Concat(
			slices.Concat(slices.Repeat([][]Check{ask80("n2-a", f.VIP(1), by(f.Addr("n2-a"), "n1-a", "n1-b"))}, 4)...),
			askPort("n1-a", f.VIP(1), 81, by(f.Addr("n1-a"), "n2-b")),
		),
	}
}

func nodePort(f Family) Case {
	client, n1 := f.Addr("client"), f.Addr("n1")
	port := func(s *dataplane.Service, port uint16) *dataplane.Service {
		for i := range s.Frontends {
			s.Frontends[i].Port = port
		}
		return s
	}
	return Case{
		Services: []*dataplane.Service{
			port(f.service80("local", dataplane.NodePort, f.Any(), "n1-a"), 30080),
			port(f.service80("remote", dataplane.NodePort, f.Any(), "n2-a"), 30081),
		},
		Checks: slices.Concat(
			askPort("client", n1, 30080, by(client, "n1-a")),
			askPort("client", n1, 30081, by(n1, "n2-a")),
			askPort("n1", n1, 30080, by(n1, "n1-a")),
			askPort("n1-b", n1, 30080, by(f.Addr("n1-b"), "n1-a")),
			askPort("client", n1, Port, by(client, "n1")),
			// The port of something else that is not this node's.
			askPort("n1-b", f.Addr("client"), 30080, Want{Fail: anyFailure}),
		),
	}
}

// remoteNodePort is asked by a pod of another node, which would be answered past n1 and would not know by whom.
func remoteNodePort(f Family) Case {
	s := &dataplane.Service{Name: f.Name("web")}
	for i, pod := range []string{"n1-a", "n2-b"} {
		port := f.service80("", dataplane.NodePort, f.Any(), pod)
		for _, frontend := range port.Frontends {
			frontend.Port, frontend.Masquerade = uint16(30080+i), dataplane.Remote
			s.Frontends = append(s.Frontends, frontend)
		}
	}
	n1 := f.Addr("n1")
	return Case{
		Services: []*dataplane.Service{s},
		Checks: slices.Concat(
			askPort("n2-a", n1, 30081, by(n1, "n2-b")),
			askPort("n1-b", n1, 30081, by(n1, "n2-b")),
			askPort("n2-a", n1, 30080, by(f.Addr("n2-a"), "n1-a")),
			askPort("n1-b", n1, 30080, by(f.Addr("n1-b"), "n1-a")),
			askPort("n1-a", n1, 30080, by(n1, "n1-a")), // hairpin
		),
	}
}

func outsideAddresses(f Family) Case {
	c := Case{}
	for i, kind := range []dataplane.Kind{dataplane.ExternalIP, dataplane.LoadBalancerIP} {
		near, far := f.VIP(1+2*i), f.VIP(2+2*i)
		c.Services = append(c.Services,
			f.service80("near"+string(rune('0'+i)), kind, near, "n1-a"), f.service80("far"+string(rune('0'+i)), kind, far, "n2-a"))
		c.Checks = slices.Concat(c.Checks,
			ask80("client", near, by(f.Addr("client"), "n1-a")),
			ask80("client", far, by(f.Addr("n1"), "n2-a")),
			ask80("n1-b", near, by(f.Addr("n1-b"), "n1-a")),
			ask80("n1-a", near, by(f.Addr("n1"), "n1-a")),
			ask80("n1", near, by(f.Addr("n1"), "n1-a")),
		)
	}
	return c
}

// withLocal gives all frontends external policy Local, with these pods local. As in Kubernetes, traffic from outside is
// dropped where it could have gone elsewhere, and refused where it could not.
func (f Family) withLocal(s *dataplane.Service, pods ...string) *dataplane.Service {
	for i := range s.Frontends {
		p := f.pool(Port, pods...)
		if len(s.Frontends[i].Pool.Targets) > 0 {
			p.Empty = dataplane.Drop
		}
		s.Frontends[i].Local = &p
	}
	return s
}

func localPolicy(f Family) Case {
	vip := f.VIP(1)
	s := f.withLocal(f.service80("web", dataplane.LoadBalancerIP, vip, "n1-a", "n2-a"), "n1-a")
	// The other way round to see which of the two pools is used.
	odd := f.withLocal(f.service80("odd", dataplane.LoadBalancerIP, f.VIP(2), "n2-a"), "n1-a")
	return Case{
		Services: []*dataplane.Service{s, odd},
		Checks: slices.Concat(
			slices.Concat(slices.Repeat([][]Check{ask80("client", vip, by(f.Addr("client"), "n1-a"))}, 4)...),
			ask80("n1-b", vip, by(f.Addr("n1-b"), "n1-a", "n2-a")),
			ask80("n1", vip, by(f.Addr("n1"), "n1-a", "n2-a")),
			ask80("client", f.VIP(2), by(f.Addr("client"), "n1-a")),
			ask80("n1-b", f.VIP(2), by(f.Addr("n1-b"), "n2-a")), // short circuit
			ask80("n1", f.VIP(2), by(f.Addr("n1"), "n2-a")),
		),
	}
}

func localPolicyEmpty(f Family) Case {
	vip := f.VIP(1)
	return Case{
		Services: []*dataplane.Service{f.withLocal(f.service80("web", dataplane.LoadBalancerIP, vip, "n2-a"))},
		Checks: slices.Concat(
			ask80("client", vip, silence),
			ask80("n1-b", vip, by(f.Addr("n1-b"), "n2-a")),
			ask80("n1", vip, by(f.Addr("n1"), "n2-a")),
		),
	}
}

func noPods(f Family) Case {
	c := Case{Services: []*dataplane.Service{
		f.service80("cluster", dataplane.ClusterIP, f.VIP(1)),
		f.service80("external", dataplane.ExternalIP, f.VIP(2)),
		f.withLocal(f.service80("local", dataplane.LoadBalancerIP, f.VIP(3))),
	}}
	for i := 1; i <= 3; i++ {
		for _, from := range []string{"client", "n1-b", "n1"} {
			c.Checks = append(c.Checks, ask(from, TCP, f.VIP(i), 80, refused), ask(from, UDP, f.VIP(i), 80, refused))
		}
	}
	return c
}

func sourceRanges(f Family) Case {
	given := f.service80("given", dataplane.LoadBalancerIP, f.VIP(1), "n1-a")
	nobody := f.service80("nobody", dataplane.LoadBalancerIP, f.VIP(2), "n1-a")
	for i := range given.Frontends {
		given.Frontends[i].Sources = []netip.Prefix{Only(f.Addr("client")), Only(f.Addr("n1-b"))}
		nobody.Frontends[i].Sources = []netip.Prefix{}
	}
	return Case{
		Services: []*dataplane.Service{given, nobody},
		Checks: slices.Concat(
			ask80("client", f.VIP(1), by(f.Addr("client"), "n1-a")),
			ask80("n1-b", f.VIP(1), by(f.Addr("n1-b"), "n1-a")),
			ask80("n2-a", f.VIP(1), silence),
			ask80("client", f.VIP(2), silence),
			ask80("n1-b", f.VIP(2), silence),
		),
	}
}

func masqueradeAlways(f Family) Case {
	s := f.service80("web", dataplane.ClusterIP, f.VIP(1), "n1-a")
	for i := range s.Frontends {
		s.Frontends[i].Masquerade = dataplane.Always
	}
	return Case{
		Services: []*dataplane.Service{s},
		Checks: slices.Concat(
			ask80("client", f.VIP(1), by(f.Addr("n1"), "n1-a")),
			ask80("n1-b", f.VIP(1), by(f.Addr("n1"), "n1-a")),
		),
	}
}

// portsFirst has one address of which one port is another service's.
func portsFirst(f Family) Case {
	client := f.Addr("client")
	return Case{
		Services: []*dataplane.Service{f.allIP("all", 1, "n1-a"), f.service80("port", dataplane.ExternalIP, f.VIP(1), "n1-b")},
		Checks: slices.Concat(
			everything("client", f.VIP(1), by(client, "n1-a")),
			ask80("client", f.VIP(1), by(client, "n1-b")),
			ask80("n1", f.VIP(1), by(f.Addr("n1"), "n1-b")),
		),
	}
}

// hostileNames are names that no API server lets pass, and that would do harm if they reached a rule as they are.
func hostileNames(f Family) Case {
	names := []string{
		"a/b\"; flush ruleset #",
		"a/b\nCOMMIT\n*nat\n-F PREROUTING\n",
		"a/$(reboot)`reboot`' -j DROP --comment '",
		"a/" + strings.Repeat("long-", 400),
		"a/" + strings.Repeat("long-", 400) + "er",
		"a/\x00\xff\u202eэ",
		"-/--help",
	}
	var c Case
	for i, name := range names {
		s, port := f.allIP("", 10+i, "n1-a"), f.service80("", dataplane.ClusterIP, f.VIP(30+i), "n1-b")
		s.Name, port.Name = name+f.Name("all"), name+f.Name("port")
		c.Services = append(c.Services, s, port)
		c.Checks = append(c.Checks,
			ask("client", TCP, f.VIP(10+i), Port, by(f.Addr("client"), "n1-a")),
			ask("client", TCP, f.VIP(30+i), 80, by(f.Addr("client"), "n1-b")))
	}
	return c
}
