// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

// BenchmarkReplace writes so many Services with ten endpoints each where there is nothing, BenchmarkRestart where all of
// them are already; BenchmarkApply exchanges one endpoint of one of them.
func BenchmarkReplace(b *testing.B) {
	withServices(b, func(b *testing.B, w *Writer, services []*dataplane.Service) {
		for b.Loop() {
			b.StopTimer()
			require.NoError(b, w.Cleanup(b.Context()))
			b.StartTimer()
			require.NoError(b, w.Replace(b.Context(), services))
		}
	})
}

func BenchmarkRestart(b *testing.B) {
	withServices(b, func(b *testing.B, w *Writer, services []*dataplane.Service) {
		for b.Loop() {
			require.NoError(b, w.Replace(b.Context(), services))
		}
	})
}

func BenchmarkApply(b *testing.B) {
	withServices(b, func(b *testing.B, w *Writer, services []*dataplane.Service) {
		was, is := services[0], numbered(0, 2)
		for b.Loop() {
			require.NoError(b, w.Apply(b.Context(), []dataplane.Change{{Old: was, New: is}}))
			was, is = is, was
		}
	})
}

// withServices runs a benchmark in a namespace that has the Services already. KPNG_BENCH_LARGE=1 adds 5,000 Services,
// which iptables-nft takes more than a minute to write.
func withServices(b *testing.B, run func(*testing.B, *Writer, []*dataplane.Service)) {
	sizes := []int{100, 1000}
	if os.Getenv("KPNG_BENCH_LARGE") != "" {
		sizes = append(sizes, 5000)
	}
	for _, flavor := range []Flavor{NFT, Legacy} {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s/services=%d", flavor, n), func(b *testing.B) {
				node := netlab.ForTest(b).Host("node")
				require.NoError(b, node.Do(func() error {
					w, err := New(options(), flavor)
					require.NoError(b, err)
					services := make([]*dataplane.Service, n)
					for i := range services {
						services[i] = numbered(i, 1)
					}
					require.NoError(b, w.Replace(b.Context(), services))
					run(b, w, services)
					return nil
				}))
			})
		}
	}
}

// numbered is a Service with ten endpoints, from the first on.
func numbered(i, first int) *dataplane.Service {
	var pool dataplane.Pool
	for j := range 10 {
		pool.Targets = append(pool.Targets, dataplane.Target{IP: netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), byte(first + j)}), Port: 80})
	}
	return &dataplane.Service{Name: fmt.Sprintf("default/service-%d", i), Frontends: []dataplane.Frontend{{
		Kind: dataplane.ClusterIP, IP: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}),
		Protocol: dataplane.TCP, Port: 80, Pool: pool,
	}}}
}
