// SPDX-License-Identifier: Apache-2.0

package state_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/state"
	"sigs.k8s.io/kpng/internal/localtest"
)

// BenchmarkMemory tells what an endpoint costs, in each form, when it has come over the wire and was handed out once.
func BenchmarkMemory(b *testing.B) {
	for name, keep := range map[string]state.Keep{"messages": state.Messages, "bytes": state.Bytes} {
		b.Run(name, func(b *testing.B) {
			const services, endpoints = 2000, 10
			for b.Loop() {
				before := heap()
				s := state.New(keep)
				for i := range services {
					path := fmt.Sprintf("namespace/service-%d", i)
					set(b, s, localtest.SetService(localtest.Service(path, "10.0.0.1", 80)))
					for j := range endpoints {
						ep := localtest.Endpoint(fmt.Sprintf("10.100.%d.%d", i%256, j))
						ep.PortOverrides = []*localv1.PortName{{Name: "http", Port: 8080}}
						set(b, s, localtest.SetEndpoint(path, fmt.Sprintf("x7k2p-%d", j), ep))
					}
				}
				changes, _ := s.Commit()
				for _, c := range changes {
					c.Record.Service()
					c.Record.AppendEndpoints(nil)
				}
				b.ReportMetric(float64(heap()-before)/(services*endpoints), "heap-B/endpoint")
				runtime.KeepAlive(s)
			}
		})
	}
}

// set sets what an op says, after its way over the wire.
func set(b *testing.B, s *state.State, op *localv1.OpItem) {
	raw, err := proto.Marshal(op)
	require.NoError(b, err)
	received := &localv1.OpItem{}
	require.NoError(b, proto.Unmarshal(raw, received))
	require.NoError(b, s.Set(received.GetSet().Ref, received.GetSet().Bytes))
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
