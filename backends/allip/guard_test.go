// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"net/netip"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestGuard(t *testing.T) {
	node := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true, netip.MustParseAddr("2001:db8::1"): true}
	allow := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("127.0.0.0/8")}
	open, strict := &guard{node: node}, &guard{node: node, allow: allow}
	careless := &guard{node: node, allow: allow, allowNodeIPs: true}
	tests := map[string]struct {
		guard *guard
		want  Reason
	}{
		"198.51.100.7":       {open, ""},
		"2001:db8:1::7":      {open, ""},
		"192.0.2.1":          {open, ReasonNode},
		"2001:db8::1":        {strict, ReasonNode},
		"2001:db8::2":        {strict, ""},
		"198.51.100.8":       {strict, ReasonNotAllowed},
		"2001:db9::1":        {strict, ReasonNotAllowed},
		"127.0.0.1":          {careless, ReasonSpecial}, // allowed, and still not
		"127.255.255.254":    {open, ReasonSpecial},
		"::1":                {open, ReasonSpecial},
		"0.0.0.0":            {open, ReasonSpecial},
		"0.1.2.3":            {open, ReasonSpecial},
		"::":                 {open, ReasonSpecial},
		"169.254.169.254":    {open, ReasonSpecial},
		"fe80::1":            {open, ReasonSpecial},
		"224.0.0.1":          {open, ReasonSpecial},
		"239.255.255.255":    {open, ReasonSpecial},
		"ff02::1":            {open, ReasonSpecial},
		"255.255.255.255":    {open, ReasonSpecial},
		"::ffff:127.0.0.1":   {open, ReasonSpecial},
		"::ffff:169.254.0.1": {open, ReasonSpecial},
	}
	for ip, test := range tests {
		require.Equal(t, test.want, test.guard.refuse(netip.MustParseAddr(ip)), ip)
	}
	require.Equal(t, Reason(""), careless.refuse(netip.MustParseAddr("192.0.2.1")), "--allow-node-ips")
	require.Equal(t, ReasonSpecial, open.refuse(netip.Addr{}))
}

func TestConfig(t *testing.T) {
	tests := map[string]struct {
		args   []string
		faults []string
	}{
		"defaults":   {},
		"everything": {args: []string{"--scope=cluster", "--egress-snat", "--cluster-cidrs=10.0.0.0/8,fd00::/8", "--allow-cidrs=192.0.2.0/24", "--allow-node-ips"}},
		"every fault": {
			args: []string{"--scope=globe", "--cluster-cidrs=10.0.0.0,10.0.0.1/8", "--allow-cidrs=::ffff:10.0.0.0/104,x"},
			faults: []string{
				"--scope=globe: want local or cluster", `--cluster-cidrs: "10.0.0.0": want a CIDR`, "--cluster-cidrs: 10.0.0.1/8 has bits beyond its length: did you mean 10.0.0.0/8?",
				"--allow-cidrs: ::ffff:10.0.0.0/104: write an IPv4 prefix as IPv4", `--allow-cidrs: "x": want a CIDR`,
			},
		},
		"egress":              {args: []string{"--egress-snat"}, faults: []string{"--egress-snat needs --cluster-cidrs"}},
		"an empty allow list": {args: []string{"--allow-cidrs="}, faults: []string{"--allow-cidrs: no prefix given"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var config Config
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			config.BindFlags(flags)
			require.NoError(t, flags.Parse(test.args))
			err := config.Validate()
			if test.faults == nil {
				require.NoError(t, err)
				return
			}
			for _, fault := range test.faults {
				require.ErrorContains(t, err, fault)
			}
		})
	}
}
