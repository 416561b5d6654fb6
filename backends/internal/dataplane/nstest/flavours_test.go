// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/iptables"
)

// flavours are all that we have.
func flavours() []flavour {
	return []flavour{nftablesFlavour(), iptablesFlavour(iptables.NFT), iptablesFlavour(iptables.Legacy)}
}

// options are those of a writer under test. Owners on one node have marks of their own.
func options(owner string) dataplane.Options {
	o := dataplane.Options{Owner: owner, ClusterCIDRs: ClusterCIDRs}
	if owner == secondOwner {
		o.Priority, o.Mark, o.MarkAlways = 6, 0x100000, 0x200000
	}
	return o.Complete()
}

const secondOwner = "kpng-two"

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
		open: func(t *testing.T, owner string) dataplane.Writer {
			w, err := iptables.New(options(owner), flavor)
			require.NoError(t, err)
			return w
		},
		flush: both(" -w 30 -t nat -F"),
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
			kept = append(kept, line[:strings.Index(line, "[")])
		default:
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}
