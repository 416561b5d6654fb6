// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

// many services of one port and ten targets, one of which is on this node.
func many(n int) []*dataplane.Service {
	all := make([]*dataplane.Service, n)
	for i := range all {
		all[i] = numbered(i, 10)
	}
	return all
}

func numbered(i, targets int) *dataplane.Service {
	vip := netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
	f := dataplane.Frontend{Kind: dataplane.ClusterIP, IP: vip, Protocol: dataplane.TCP, Port: 80, Masquerade: dataplane.NonLocal}
	for j := range targets {
		ip := netip.AddrFrom4([4]byte{11, byte(i*10>>16) + byte(j)<<4, byte(i >> 8), byte(i)})
		f.Pool.Targets = append(f.Pool.Targets, dataplane.Target{IP: ip, Port: 8080, Local: j == 0})
	}
	s := &dataplane.Service{Name: fmt.Sprintf("default/service-%d", i), Frontends: []dataplane.Frontend{f}}
	s.Normalize()
	return s
}

func BenchmarkFullSync(b *testing.B) {
	all := many(5000)
	h := netlab.ForTest(b).Host("node")
	w := newWriter(b)
	for b.Loop() {
		must(b, h.Do(func() error { return w.Replace(b.Context(), all) }))
	}
}

// BenchmarkChange takes a target from a service and gives it back. KPNG_BENCH_LARGE=1 adds 20,000 services, which
// the kernel needs minutes to take in at first.
func BenchmarkChange(b *testing.B) {
	sizes := []int{50, 5000, 20000}
	if os.Getenv("KPNG_BENCH_LARGE") != "" {
		sizes = append(sizes, 20000)
	}
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := many(n)
			h := netlab.ForTest(b).Host("node")
			w := newWriter(b)
			must(b, h.Do(func() error { return w.Replace(b.Context(), all) }))
			change := dataplane.Change{Old: numbered(n/2, 10), New: numbered(n/2, 9)}
			for b.Loop() {
				must(b, h.Do(func() error { return w.Apply(b.Context(), []dataplane.Change{change}) }))
				change.Old, change.New = change.New, change.Old
			}
		})
	}
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
