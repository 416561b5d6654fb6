// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"slices"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// AllIPCases are about services that get every packet to an address, whatever it is.
func AllIPCases() []Case {
	return []Case{
		bothFamilies("every protocol from outside", everyProtocolOutside),
		bothFamilies("every protocol from the node itself", everyProtocolNode),
		bothFamilies("from pods, and from a pod to itself", fromPods),
		bothFamilies("remote pods are masqueraded", remotePods),
		bothFamilies("other addresses are left alone", otherAddresses),
		bothFamilies("services beside each other", besideEachOther),
		bothFamilies("connections of served pods leave as the service", egress),
		bothFamilies("nobody there, but the address is ours", allIPReject),
		bothFamilies("only given sources", allIPSources),
	}
}

// allIP is a service of one address and the pods it goes to.
func (f Family) allIP(name string, vip int, pods ...string) *dataplane.Service {
	return &dataplane.Service{Name: f.Name(name), Frontends: []dataplane.Frontend{{
		Kind: dataplane.ExternalIP, IP: f.VIP(vip), Protocol: dataplane.Any,
		Pool: f.pool(0, pods...), Masquerade: dataplane.NonLocal,
	}}}
}

// pool are pods at a port.
func (f Family) pool(port uint16, pods ...string) dataplane.Pool {
	var p dataplane.Pool
	for _, pod := range pods {
		p.Targets = append(p.Targets, dataplane.Target{IP: f.Addr(pod), Port: port, Local: pod[:2] == "n1"})
	}
	return p
}

func everyProtocolOutside(f Family) Case {
	c := Case{Services: []*dataplane.Service{f.allIP("web", 1, "n1-a")}}
	for _, from := range []string{"client", "n2", "n2-a"} {
		c.Checks = append(c.Checks, everything(from, f.VIP(1), by(f.Addr(from), "n1-a"))...)
	}
	return c
}

func everyProtocolNode(f Family) Case {
	return Case{
		Services: []*dataplane.Service{f.allIP("web", 1, "n1-a")},
		Checks:   everything("n1", f.VIP(1), by(f.Addr("n1"), "n1-a")),
	}
}

func fromPods(f Family) Case {
	return Case{
		Services: []*dataplane.Service{f.allIP("web", 1, "n1-a")},
		Checks: slices.Concat(
			everything("n1-b", f.VIP(1), by(f.Addr("n1-b"), "n1-a")),
			// Without masquerade the pod would get an answer from itself, not from the service.
			everything("n1-a", f.VIP(1), by(f.Addr("n1"), "n1-a")),
		),
	}
}

func remotePods(f Family) Case {
	return Case{
		Services: []*dataplane.Service{f.allIP("web", 1, "n2-a")},
		Checks: slices.Concat(
			everything("client", f.VIP(1), by(f.Addr("n1"), "n2-a")),
			withoutGRE(everything("n1", f.VIP(1), by(f.Addr("n1"), "n2-a"))),
			// A pod's replies come through its node anyway.
			everything("n1-b", f.VIP(1), by(f.Addr("n1-b"), "n2-a")),
		),
	}
}

func otherAddresses(f Family) Case {
	client := f.Addr("client")
	return Case{
		Services: []*dataplane.Service{f.allIP("web", 1, "n1-a")},
		Checks: slices.Concat(
			everything("client", f.Addr("n1"), by(client, "n1")),
			everything("client", f.Addr("n1-b"), by(client, "n1-b")),
			everything("n1-a", f.Addr("client"), by(f.Addr("n1-a"), "client")),
			[]Check{ask("client", TCP, f.VIP(2), Port, silence), ask("client", UDP, f.VIP(2), Port, silence)},
		),
	}
}

func besideEachOther(f Family) Case {
	client := f.Addr("client")
	two := f.allIP("two", 3, "n1-b")
	two.Frontends = append(two.Frontends, f.allIP("two", 4, "n1-b").Frontends...)
	return Case{
		Services: []*dataplane.Service{f.allIP("a", 1, "n1-a"), f.allIP("b", 2, "n1-b"), two},
		Checks: slices.Concat(
			everything("client", f.VIP(1), by(client, "n1-a")),
			everything("client", f.VIP(2), by(client, "n1-b")),
			withoutGRE(everything("client", f.VIP(3), by(client, "n1-b"))),
			withoutGRE(everything("client", f.VIP(4), by(client, "n1-b"))),
			everything("n1-a", f.VIP(2), by(f.Addr("n1-a"), "n1-b")),
			everything("n1-b", f.VIP(1), by(f.Addr("n1-b"), "n1-a")),
		),
	}
}

func allIPReject(f Family) Case {
	vip := f.VIP(1)
	c := Case{Services: []*dataplane.Service{f.allIP("web", 1)}}
	for _, from := range []string{"client", "n1-b", "n1"} {
		c.Checks = append(c.Checks, ask(from, TCP, vip, Port, refused), ask(from, UDP, vip, Port, refused))
	}
	return c
}

func allIPSources(f Family) Case {
	s := f.allIP("web", 1, "n1-a")
	s.Frontends[0].Sources = append(s.Frontends[0].Sources, Only(f.Addr("client")))
	nobody := f.allIP("nobody", 2, "n1-a")
	nobody.Frontends[0].Sources = append(nobody.Frontends[0].Sources, Only(f.VIP(9)))
	return Case{
		Services: []*dataplane.Service{s, nobody},
		Checks: slices.Concat(
			everything("client", f.VIP(1), by(f.Addr("client"), "n1-a")),
			everything("n2-a", f.VIP(1), silence),
			everything("client", f.VIP(2), silence),
		),
	}
}

// egress serves n1-a with its connections leaving as the service; n1-b is not served.
func egress(f Family) Case {
	s := f.allIP("web", 1, "n1-a")
	s.Egress = []dataplane.Egress{{Source: f.Addr("n1-a"), IP: f.VIP(1)}}
	return Case{
		Services: []*dataplane.Service{s, f.allIP("other", 2, "n1-b")},
		Checks: slices.Concat(
			everything("n1-a", f.Addr("client"), by(f.VIP(1), "client")),
			everything("n1-b", f.Addr("client"), by(f.Addr("n1-b"), "client")),
			// Never pod to pod, to node, or to service.
			everything("n1-a", f.Addr("n1-b"), by(f.Addr("n1-a"), "n1-b")),
			everything("n1-a", f.Addr("n2-a"), by(f.Addr("n1-a"), "n2-a")),
			everything("n1-a", f.Addr("n2"), by(f.Addr("n1-a"), "n2")),
			everything("n1-a", f.Addr("n1"), by(f.Addr("n1-a"), "n1")),
			withoutGRE(everything("n1-a", f.VIP(2), by(f.Addr("n1-a"), "n1-b"))),
			// Answers to clients outside come from where they asked.
			everything("client", f.VIP(1), by(f.Addr("client"), "n1-a")),
			withoutGRE(everything("n1-a", f.VIP(1), by(f.Addr("n1"), "n1-a"))),
		),
	}
}
