// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables_test

import (
	"fmt"
	"net/netip"
	"runtime"
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

var sizes = []int{50, 5000, 20000}

// BenchmarkFullSync replaces everything by the same. The heap is what the writer keeps.
func BenchmarkFullSync(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := many(n)
			h := netlab.ForTest(b).Host("node")
			w := newWriter(b)
			before := heap()
			for b.Loop() {
				must(b, h.Do(func() error { return w.Replace(b.Context(), all) }))
			}
			b.ReportMetric(float64(heap()-before)/(1<<20), "heap-MB")
			runtime.KeepAlive(w)
			runtime.KeepAlive(all)
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkChange makes a change among many services and takes it back. A target that comes or goes is a change of elements,
// unless the number of targets takes another chain; then the kernel walks through all frontends.
func BenchmarkChange(b *testing.B) {
	for _, change := range []struct {
		name string
		of   func(i int) dataplane.Change
	}{
		{"target", func(i int) dataplane.Change { return dataplane.Change{Old: numbered(i, 10), New: numbered(i, 9)} }},
		{"step", func(i int) dataplane.Change { return dataplane.Change{Old: numbered(i, 9), New: numbered(i, 8)} }},
		{"service", func(i int) dataplane.Change { return dataplane.Change{Old: numbered(i, 10)} }},
	} {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/%d", change.name, n), func(b *testing.B) {
				all, c := many(n), change.of(n/2)
				all[n/2] = c.Old
				h := netlab.ForTest(b).Host("node")
				w := newWriter(b)
				must(b, h.Do(func() error { return w.Replace(b.Context(), all) }))
				for b.Loop() {
					must(b, h.Do(func() error { return w.Apply(b.Context(), []dataplane.Change{c}) }))
					c.Old, c.New = c.New, c.Old
				}
			})
		}
	}
}

// BenchmarkCheck looks at a table after somebody else made a change elsewhere.
func BenchmarkCheck(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			lab := netlab.ForTest(b)
			h, all := lab.Host("node"), many(n)
			w, o := newWriter(b), options
			o.Owner = "kpng-other"
			other := newWriterOf(b, o)
			must(b, h.Do(func() error { return w.Replace(b.Context(), all) }))
			for b.Loop() {
				must(b, h.Do(func() error {
					must(b, other.Replace(b.Context(), nil))
					if ok, err := w.Check(b.Context()); !ok || err != nil {
						b.Fatal(ok, err)
					}
					return nil
				}))
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
