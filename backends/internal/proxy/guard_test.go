// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

func TestGuard(t *testing.T) {
	node := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true, netip.MustParseAddr("2001:db8::1"): true}
	allow := Prefixes{List: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("127.0.0.0/8")}}
	open, strict := &Guard{}, &Guard{Allow: allow}
	careless := &Guard{Allow: allow, AllowNodeIPs: true}
	tests := map[string]struct {
		guard *Guard
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
		f := &dataplane.Frontend{Kind: dataplane.ExternalIP, IP: netip.MustParseAddr(ip)}
		require.Equal(t, test.want, test.guard.refuse(f, node), ip)
	}
	mine := &dataplane.Frontend{Kind: dataplane.LoadBalancerIP, IP: netip.MustParseAddr("192.0.2.1")}
	require.Equal(t, Reason(""), careless.refuse(mine, node), "--allow-node-ips")
	mine.Protocol, mine.Port = dataplane.TCP, 80
	require.Equal(t, Reason(""), strict.refuse(mine, node), "one port of it is not the whole node")
	require.Equal(t, ReasonSpecial, open.refuse(&dataplane.Frontend{Kind: dataplane.ExternalIP}, node))
	for _, kind := range []dataplane.Kind{dataplane.ClusterIP, dataplane.NodePort} {
		require.Equal(t, Reason(""), strict.refuse(&dataplane.Frontend{Kind: kind}, node), "the API server gave it")
	}
}
