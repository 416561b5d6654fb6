// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"testing"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// discard is a stream that counts and forgets, so that what is measured is our side alone.
type discard struct{ messages, bytes int }

func (d *discard) SendMsg(m any) error {
	f := m.(frame)
	d.messages++
	d.bytes += f.bytes.Len()
	f.bytes.Free()
	return nil
}

func fromNode(i int) *localv1.WatchReq { return &localv1.WatchReq{NodeName: fmt.Sprintf("node-%d", i)} }

func filled(n int) *store.Store {
	st := store.New()
	st.Update(func(tx *store.Tx) {
		for i := range n {
			tx.SetService(service(fmt.Sprintf("svc-%d", i), func(info *globalv1.ServiceInfo) {
				info.Service.Ports = []*localv1.PortMapping{{Name: "http", Protocol: localv1.Protocol_TCP, Port: 80, TargetPort: 8080}}
			}))
			tx.SetSlice(tenEndpoints(i, -1))
		}
		tx.SetSynced()
	})
	return st
}

func tenEndpoints(i, down int) *store.Slice {
	var texts []string
	for j := range 10 {
		text := fmt.Sprintf("10.%d.%d.%d@node-%d", i>>8&255, i&255, j, (i+j)%100)
		if j == down {
			text += "!"
		}
		texts = append(texts, text)
	}
	return slice(fmt.Sprintf("svc-%d", i), fmt.Sprintf("svc-%d-abcde", i), texts...)
}

// BenchmarkFirstSync: the whole state of 1,000 services of ten endpoints, for one watcher.
func BenchmarkFirstSync(b *testing.B) {
	st := filled(1000)
	for _, batch := range []bool{true, false} {
		b.Run(fmt.Sprintf("batch=%v", batch), func(b *testing.B) {
			var out discard
			b.ReportAllocs()
			for b.Loop() {
				var state localState
				w := newFrameWriter(&out, batch)
				state.advance(st.Snapshot(), fromNode(1), w)
				if err := w.end(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(out.messages)/float64(b.N), "messages/op")
			b.ReportMetric(float64(out.bytes)/float64(b.N), "wireB/op")
		})
	}
}

// BenchmarkChange: one endpoint changes and each of 100 watchers is told. The commit is part of it.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			st := filled(n)
			changes := [2]*store.Slice{tenEndpoints(7, 3), tenEndpoints(7, -1)}
			states, requests := make([]localState, 100), make([]*localv1.WatchReq, 100)
			var out discard
			for i := range states {
				requests[i] = fromNode(i)
				states[i].advance(st.Snapshot(), requests[i], newFrameWriter(&out, true))
			}
			out = discard{}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				st.Update(func(tx *store.Tx) { tx.SetSlice(changes[i%2]) })
				i++
				for at := range states {
					w := newFrameWriter(&out, true)
					states[at].advance(st.Snapshot(), requests[at], w)
					if err := w.end(); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(len(states)), "µs/watcher")
		})
	}
}

// BenchmarkGlobalFirstSync: the whole state of 1,000 services of ten endpoints, for another kpng.
func BenchmarkGlobalFirstSync(b *testing.B) {
	st := filled(1000)
	var out discard
	b.ReportAllocs()
	for b.Loop() {
		var state globalState
		w := newFrameWriter(&out, true)
		state.advance(st.Snapshot(), &globalv1.GlobalWatchReq{}, w)
		if err := w.end(); err != nil {
			b.Fatal(err)
		}
	}
}
