// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/iptables"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
)

// flavours are all that we have.
func flavours() []flavour {
	return []flavour{nftablesFlavour(), iptablesFlavour(iptables.NFT), iptablesFlavour(iptables.Legacy)}
}

// options are those of a writer under test. Two owners on a node have the same marks, as they do by default.
func options(owner string) dataplane.Options {
	return dataplane.Options{Owner: owner, ClusterCIDRs: ClusterCIDRs}.Complete()
}

func nftablesFlavour() flavour {
	return flavour{
		name: "nftables",
		open: func(t *testing.T, o dataplane.Options) dataplane.Writer {
			w, err := nftables.New(o)
			require.NoError(t, err)
			return w
		},
		flushes: [][]string{
			{"nft flush ruleset"},
			{"nft delete table inet kpng-test"},
			{"nft flush chain inet kpng-test prerouting"},
		},
		others: []string{"nft add table inet admin", "nft add chain inet admin input"},
		foreign: []string{
			"nft add table inet admin",
			"nft add chain inet admin input { type filter hook input priority 0 ; }",
			"nft add rule inet admin input tcp dport 1 drop",
			"nft add chain inet admin nat { type nat hook prerouting priority -100 ; }",
			"nft add rule inet admin nat tcp dport 1 redirect to :2",
			"iptables-nft -t nat -A POSTROUTING -p tcp --dport 1 -j MASQUERADE",
			"ip6tables-nft -t filter -A FORWARD -p tcp --dport 1 -j DROP",
		},
		dump:       []string{"nft list ruleset"},
		dropByRule: []string{"iptables-nft -P FORWARD DROP", "ip6tables-nft -P FORWARD DROP", "iptables-legacy -P FORWARD DROP", "ip6tables-legacy -P FORWARD DROP"},
	}
}

func iptablesFlavour(flavor iptables.Flavor) flavour {
	// both are commands for both families.
	both := func(commands ...string) []string {
		var all []string
		for _, family := range []string{"iptables-", "ip6tables-"} {
			for _, c := range commands {
				all = append(all, family+string(flavor)+c)
			}
		}
		return all
	}
	return flavour{
		name: "iptables-" + string(flavor),
		open: func(t *testing.T, o dataplane.Options) dataplane.Writer {
			w, err := iptables.New(o, flavor)
			require.NoError(t, err)
			return w
		},
		flushes: [][]string{both(" -w 30 -t nat -F"), both(" -w 30 -t nat -D PREROUTING 1")},
		others:  both(" -w 30 -t nat -N ADMIN", " -w 30 -t nat -A POSTROUTING -j ADMIN"),
		foreign: both(
			" -w 30 -t nat -N ADMIN", " -w 30 -t nat -A PREROUTING -m comment --comment ours -j ADMIN", " -w 30 -t nat -A ADMIN -p tcp --dport 1 -j RETURN",
			" -w 30 -t filter -N ADMIN", " -w 30 -t filter -A FORWARD -j ADMIN", " -w 30 -t filter -A ADMIN -p tcp --dport 1 -j DROP",
			" -w 30 -t nat -A POSTROUTING -p tcp --dport 1 -j MASQUERADE", " -w 30 -t filter -A INPUT -p udp --dport 1 -j REJECT",
			" -w 30 -t filter -A OUTPUT -p udp --dport 1 -j ACCEPT", " -w 30 -t nat -A OUTPUT -p udp --dport 1 -j ACCEPT",
		),
		dump:       both("-save"),
		dropByRule: both(" -w 30 -P FORWARD DROP"),
	}
}

// foreignRules are the rules of a dump that are not ours, without what changes by itself.
func foreignRules(dump string) string {
	var kept []string
	ours := false
	for _, line := range strings.Split(dump, "\n") {
		switch {
		case strings.HasPrefix(line, "table ") && strings.Contains(line, "kpng"):
			ours = true
		case ours:
			ours = line != "}"
		case strings.HasPrefix(line, "#") || strings.Contains(line, "KPNG"):
		case strings.HasPrefix(line, ":"): // a chain, its policy and counters
			chain, _, _ := strings.Cut(line, "[")
			kept = append(kept, chain)
		default:
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
