// SPDX-License-Identifier: Apache-2.0

package localv1

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIPSetAdd(t *testing.T) {
	for _, tc := range []struct {
		add    string
		v4, v6 []string
	}{
		{add: "10.0.0.1", v4: []string{"10.0.0.1"}},
		{add: "1000::55", v6: []string{"1000::55"}},
		{add: "2001:DB8:0:0::1", v6: []string{"2001:db8::1"}},
		{add: "::ffff:192.0.2.1", v4: []string{"192.0.2.1"}},
		{add: "::192.0.2.1", v6: []string{"::c000:201"}},
		{add: "0.0.0.0", v4: []string{"0.0.0.0"}},
		{add: "::", v6: []string{"::"}},
		{add: ""},
		{add: "10.0.0"},
		{add: "010.0.0.1"},
		{add: "10.0.0.1/32"},
		{add: " 10.0.0.1"},
		{add: "fe80::1%eth0"},
		{add: "example.org"},
	} {
		t.Run(tc.add, func(t *testing.T) {
			set := &IPSet{}
			got := set.Add(tc.add)
			require.Equal(t, net.ParseIP(tc.add), got)
			require.Equal(t, tc.v4, set.V4)
			require.Equal(t, tc.v6, set.V6)
			require.Equal(t, got == nil, set.IsEmpty())

			require.Equal(t, set.All(), NewIPSet(tc.add).All(), "NewIPSet differs from Add")
		})
	}
}

func TestIPSetIsSortedWithoutDuplicates(t *testing.T) {
	in := []string{"10.0.0.9", "10.0.0.10", "1000::2", "10.0.0.9", "::ffff:10.0.0.9", "1000::1", "1000:0::1", "x", "9.0.0.1"}
	v4, v6 := []string{"10.0.0.10", "10.0.0.9", "9.0.0.1"}, []string{"1000::1", "1000::2"}

	one := &IPSet{}
	for _, s := range in {
		one.Add(s)
	}
	all := NewIPSet(in...)
	all.AddAll(in)
	sum := NewIPSet(in[4:]...)
	sum.AddSet(NewIPSet(in[:5]...))
	sum.AddSet(nil)

	for name, set := range map[string]*IPSet{"Add": one, "AddAll": all, "AddSet": sum} {
		require.Equal(t, v4, set.V4, name)
		require.Equal(t, v6, set.V6, name)
		require.Equal(t, slices.Concat(v4, v6), set.All(), name)
	}
	require.Equal(t, "10.0.0.10", one.First())
	require.Equal(t, "1000::1", NewIPSet("1000::1").First())
}

func TestIPSetAddSetDoesNotShareMemory(t *testing.T) {
	a, b := NewIPSet("10.0.0.2"), NewIPSet("10.0.0.1", "1000::1")
	a.AddSet(b)
	empty := &IPSet{}
	empty.AddSet(b)
	empty.V4[0], a.V4[0], a.V6[0] = "x", "y", "z"
	all := b.All()
	all[0] = "w"
	require.Equal(t, []string{"10.0.0.1", "1000::1"}, b.All())
}

func TestIPSetNil(t *testing.T) {
	var set *IPSet
	require.True(t, set.IsEmpty())
	require.Empty(t, set.First())
	require.Nil(t, set.All())
	added, removed := set.Diff(nil)
	require.True(t, added.IsEmpty() && removed.IsEmpty())
	added, removed = set.Diff(NewIPSet("10.0.0.1"))
	require.Equal(t, []string{"10.0.0.1"}, added.All())
	require.True(t, removed.IsEmpty())
}

func TestIPSetDiff(t *testing.T) {
	for _, tc := range []struct{ name, from, to, added, removed string }{
		{name: "same", from: "10.0.0.1 1::1", to: "10.0.0.1 1::1"},
		{name: "all new", to: "10.0.0.1 1::1", added: "10.0.0.1 1::1"},
		{name: "all gone", from: "10.0.0.1 1::1", removed: "10.0.0.1 1::1"},
		{name: "some", from: "10.0.0.1 10.0.0.2 10.0.0.3 1::1", to: "10.0.0.2 10.0.0.4 1::2", added: "10.0.0.4 1::2", removed: "10.0.0.1 10.0.0.3 1::1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			added, removed := NewIPSet(fields(tc.from)...).Diff(NewIPSet(fields(tc.to)...))
			require.Equal(t, fields(tc.added), added.All())
			require.Equal(t, fields(tc.removed), removed.All())
		})
	}
	unsorted := &IPSet{V4: []string{"3", "1", "2", "1"}}
	added, removed := unsorted.Diff(&IPSet{V4: []string{"4", "2"}})
	require.Equal(t, []string{"4"}, added.V4)
	require.Equal(t, []string{"1", "3"}, removed.V4)
	require.Equal(t, []string{"3", "1", "2", "1"}, unsorted.V4, "Diff changed its receiver")
}

func fields(s string) []string {
	out := []string{}
	for f := range strings.SplitSeq(s, " ") {
		if f != "" {
			out = append(out, f)
		}
	}
	return out
}

func FuzzIPSetAdd(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "::1", "::ffff:1.2.3.4", "fe80::1%a", "", "1.2.3.4.5", "1::2::3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set := NewIPSet("10.0.0.1", "1000::55")
		got := set.Add(s)
		require.Equal(t, net.ParseIP(s), got)
		require.True(t, slices.IsSorted(set.V4) && slices.IsSorted(set.V6))
		if got != nil {
			require.Contains(t, set.All(), got.String())
			require.Equal(t, got.To4() != nil, slices.Contains(set.V4, got.String()))
		}
	})
}

// An endpoint has one address; a service has a few; a load balancer rarely more than some ten.
func BenchmarkNewIPSet(b *testing.B) {
	for _, n := range []int{1, 4, 64} {
		ips := make([]string, n)
		for i := range ips {
			ips[i] = fmt.Sprintf("10.%d.0.%d", n-i, i)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewIPSet(ips...)
			}
		})
	}
}
