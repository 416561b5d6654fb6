// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"
)

// The rules are written as iptables-save writes them, so that who compares the two sees what differs and nothing else.

// join puts the parts of a rule together, without those that are empty.
func join(parts ...string) rule {
	var b strings.Builder
	for _, p := range parts {
		if p == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(p)
	}
	return rule(b.String())
}

func fromHost(ip netip.Addr) string { return "-s " + host(ip) }

func toHost(ip netip.Addr) string { return "-d " + host(ip) }

func host(ip netip.Addr) string { return netip.PrefixFrom(ip, ip.BitLen()).String() }

func saying(text string) string {
	return `-m comment --comment "` + comment(text) + `"`
}

func jump(chain string) string { return "-j " + chain }

// setMark sets the bits of a packet's mark, or of its connection's.
func setMark(target string, bits uint32) string {
	return fmt.Sprintf("-j %s --set-xmark 0x%[2]x/0x%[2]x", target, bits)
}

func marked(match string, bits uint32) string {
	return fmt.Sprintf("-m %s --mark 0x%[2]x/0x%[2]x", match, bits)
}

// oneOf matches one of n packets. The kernel holds a fraction of 2^31, which is what iptables-save shows.
func oneOf(n int) string {
	const scale = 1 << 31
	p := math.Round(scale/float64(n)) / scale
	return fmt.Sprintf("-m statistic --mode random --probability %.11f", p)
}

// dnat sends to an address and, unless it is 0, a port.
func dnat(ip netip.Addr, port uint16) string {
	if port == 0 {
		return "-j DNAT --to-destination " + ip.String()
	}
	return "-j DNAT --to-destination " + netip.AddrPortFrom(ip, port).String()
}

// remembered matches a client that a list has seen within the time, and sees it again.
func (f family) remembered(list string, within time.Duration) string {
	seconds := max(1, int64(within/time.Second))
	return fmt.Sprintf("-m recent --update --seconds %d --reap --name %s %s", seconds, list, f.bySource())
}

// remember puts the client into a list.
func (f family) remember(list string) string {
	return fmt.Sprintf("-m recent --set --name %s %s", list, f.bySource())
}

func (f family) bySource() string {
	return [...]string{
		"--mask 255.255.255.255 --rsource",
		"--mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource",
	}[f]
}

// reject answers as a host does on which nobody listens: TCP and UDP clients see a refused connection.
func (f family) reject() string {
	return "-j REJECT --reject-with " + [...]string{"icmp-port-unreachable", "icmp6-port-unreachable"}[f]
}
