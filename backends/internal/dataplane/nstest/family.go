// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kpng/internal/netlab"
)

// Family is an IP family of the lab; its methods are the words that cases are written in.
type Family struct{ V6 bool }

// Families are both.
var Families = []Family{{false}, {true}}

// VIP is the i-th address that is no host's and reaches n1.
func (f Family) VIP(i int) netip.Addr {
	if f.V6 {
		return netip.MustParseAddr(fmt.Sprintf("1000::%d", i))
	}
	return netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", i))
}

// Addr is the address of a host of the lab, by name: client, n1, n2, n1-a to n1-i, n2-a and so on.
func (f Family) Addr(host string) netip.Addr {
	switch {
	case host == "client" && f.V6:
		return netip.MustParseAddr("fd31::100")
	case host == "client":
		return netip.MustParseAddr("172.31.0.100")
	}
	node, pod, isPod := strings.Cut(strings.TrimPrefix(host, "n"), "-")
	switch {
	case isPod && f.V6:
		return netip.MustParseAddr(fmt.Sprintf("1100::%s0%d", node, pod[0]-'a'+2))
	case isPod:
		return netip.MustParseAddr(fmt.Sprintf("11.0.%s.%d", node, pod[0]-'a'+2))
	case f.V6:
		return netip.MustParseAddr("fd31::" + node)
	}
	return netip.MustParseAddr("172.31.0." + node)
}

// Name tells the family in names of services, which are one of a family here.
func (f Family) Name(service string) string {
	if f.V6 {
		return "test/" + service + "-v6"
	}
	return "test/" + service + "-v4"
}

// Any is the unspecified address, which node ports have.
func (f Family) Any() netip.Addr {
	if f.V6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Only is a prefix of this one address.
func Only(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// by is an answer of any of these hosts, which saw this address.
func by(source netip.Addr, hosts ...string) Want { return Want{By: hosts, Source: source} }

var (
	refused = Want{Fail: Refused}
	silence = Want{Fail: Unanswered}
)

// ask is a check with one protocol and port.
func ask(from, network string, to netip.Addr, port uint16, want Want) Check {
	return Check{From: from, Probe: netlab.Probe{Network: network, To: netip.AddrPortFrom(to, port)}, Want: want}
}

// everything asks in every protocol there is, and in fragments.
func everything(from string, to netip.Addr, want Want) []Check {
	checks := []Check{
		ask(from, TCP, to, Port, want), ask(from, TCP, to, OtherPort, want), ask(from, UDP, to, Port, want),
		ask(from, ICMP, to, 0, want), ask(from, GRE, to, 0, want),
	}
	big := ask(from, UDP, to, OtherPort, want)
	big.Size = 4000
	checks = append(checks, big)
	if !SCTPOfKernel() {
		checks = append(checks, ask(from, SCTP, to, 38412, want))
	}
	return checks
}

// withoutGRE leaves out GRE, for cases in which one client reaches one pod in two ways: GRE has neither ports nor
// anything else that the kernel could tell the two connections apart by, so it drops the second.
func withoutGRE(checks []Check) []Check {
	return slices.DeleteFunc(checks, func(c Check) bool { return c.Network == GRE })
}

// bothFamilies is a case whose services and checks are those of both families together.
func bothFamilies(name string, of func(f Family) Case) Case {
	c := Case{Name: name}
	for _, f := range Families {
		one := of(f)
		c.Services = append(c.Services, one.Services...)
		c.Checks = append(c.Checks, one.Checks...)
	}
	return c
}
