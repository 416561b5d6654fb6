// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"runtime"
	"testing"

	"sigs.k8s.io/kpng/api/globalv1"
)

var sizes = []int{100, 10_000, 100_000}

// filled returns a store of n services with ten endpoints each.
func filled(n int) *Store {
	s := New()
	s.Update(func(tx *Tx) {
		for i := range n {
			tx.SetService(service(fmt.Sprintf("svc-%d", i), 80))
			tx.SetSlice(tenEndpoints(i, -1))
		}
		tx.SetSynced()
	})
	return s
}

// tenEndpoints is the slice of service i, with endpoint down (of 0 to 9) not ready.
func tenEndpoints(i, down int) *Slice {
	var eps []*globalv1.EndpointInfo
	for j := range 10 {
		ep := endpoint(fmt.Sprintf("10.%d.%d.%d", i>>8&255, i&255, j), ports(8080), func(info *globalv1.EndpointInfo) {
			info.PodName = fmt.Sprintf("svc-%d-7d4b9c6f5-%05d", i, j)
			info.Topology = &globalv1.TopologyInfo{Node: fmt.Sprintf("node-%d", (i+j)%100), Zone: "zone-a"}
		})
		if j == down {
			notReady(ep)
		}
		eps = append(eps, ep)
	}
	return sliceOf(fmt.Sprintf("svc-%d", i), fmt.Sprintf("svc-%d-abcde", i), eps...)
}

// BenchmarkCommit: one endpoint of one service changes. The cost must not depend on the number of services.
func BenchmarkCommit(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := filled(n)
			changes := [2]*Slice{tenEndpoints(7, 3), tenEndpoints(7, -1)}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Update(func(tx *Tx) { tx.SetSlice(changes[i%2]) })
				i++
			}
		})
	}
}

// BenchmarkSince: finding that one service of many changed.
func BenchmarkSince(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := filled(n)
			before := s.Snapshot()
			s.Update(func(tx *Tx) { tx.SetSlice(tenEndpoints(7, 3)) })
			after := s.Snapshot()
			b.ReportAllocs()
			for b.Loop() {
				for range after.Since(before).Services() {
				}
			}
		})
	}
}

// BenchmarkSinceForgotten: the same for a reader that is further behind than the history goes.
func BenchmarkSinceForgotten(b *testing.B) {
	s := filled(10_000)
	before := s.Snapshot()
	for i := range 3 * historyKeys {
		s.Update(func(tx *Tx) { tx.SetSlice(tenEndpoints(7, i%2)) })
	}
	after := s.Snapshot()
	for b.Loop() {
		for range after.Since(before).Services() {
		}
	}
}

// BenchmarkMemory reports what an endpoint costs, all included, where a service has ten.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := filled(10_000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/100_000, "B/endpoint")
		runtime.KeepAlive(s)
	}
}
