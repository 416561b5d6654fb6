// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/serve"
	"sigs.k8s.io/kpng/server/store"
)

// serveSynthetic is the child process: arguments SOCKET SERVICES ENDPOINTS, orders on standard input.
func serveSynthetic(ctx context.Context, args []string) error {
	services, err1 := strconv.Atoi(args[1])
	endpoints, err2 := strconv.Atoi(args[2])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	w := &world{services: services, endpoints: endpoints}
	st := store.New()
	fill(st, w)
	config := &serve.Config{Listen: []string{"unix://" + args[0]}, Local: true, Global: true, MaxWatchers: 5000}
	server, err := serve.New(config, st)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error {
		defer cancel()
		return obey(st, w)
	})
	fmt.Println("serving")
	return group.Wait()
}

// fill sets the whole world, some services at a time.
func fill(st *store.Store, w *world) {
	const atOnce = 1000
	for from := 0; from < w.services; from += atOnce {
		st.Update(func(tx *store.Tx) {
			for i := from; i < min(from+atOnce, w.services); i++ {
				tx.SetService(serviceInfo(i))
				tx.SetSlice(w.slice(serviceState{Service: i, Port: basePort, Down: -1}))
			}
		})
	}
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
}

// obey follows orders until there are no more.
func obey(st *store.Store, w *world) error {
	for in := json.NewDecoder(os.Stdin); ; {
		var o order
		err := in.Decode(&o)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case o.Set != nil:
			st.Update(func(tx *store.Tx) { tx.SetSlice(w.slice(*o.Set)) })
		case o.Heap:
			if err := json.NewEncoder(os.Stdout).Encode(heapOf(st)); err != nil {
				return err
			}
		}
	}
}

func serviceInfo(i int) *globalv1.ServiceInfo {
	return &globalv1.ServiceInfo{Service: &localv1.Service{
		Namespace: namespace, Name: serviceName(i), Type: "ClusterIP",
		IPs:   &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet(fmt.Sprintf("172.%d.%d.%d", 16+i>>16, i>>8&255, i&255))},
		Ports: []*localv1.PortMapping{{Name: "http", Protocol: localv1.Protocol_TCP, Port: 80, TargetPort: basePort}},
	}}
}

// slice is the EndpointSlice of a service. Names are as long as in a cluster.
func (w *world) slice(s serviceState) *store.Slice {
	name := serviceName(s.Service)
	out := &store.Slice{Namespace: namespace, Name: name + "-abcde", Service: name}
	for j := range w.endpoints {
		address := w.address(s.Service, j)
		ready := j != s.Down
		out.Endpoints = append(out.Endpoints, &globalv1.EndpointInfo{
			Namespace: namespace, SourceName: out.Name, ServiceName: name,
			Endpoint: &localv1.Endpoint{
				IPs:           localv1.NewIPSet(addressText(address)),
				PortOverrides: []*localv1.PortName{{Name: "http", Port: int32(s.Port)}},
			},
			Conditions: &globalv1.EndpointConditions{Ready: ready, Serving: ready},
			PodName:    podName(s.Service, j),
			Topology:   &globalv1.TopologyInfo{Node: nodeName(nodeOf(address)), Zone: "zone-a"},
		})
	}
	return out
}

func podName(service, endpoint int) string {
	return fmt.Sprintf("%s-7d4b9c6f5-%05d", serviceName(service), endpoint)
}

// heapOf measures what the store holds.
func heapOf(st *store.Store) heap {
	runtime.GC()
	runtime.GC() // the profile is of the last collection but one
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	h := heap{Bytes: int(stats.HeapAlloc), By: map[string]int{}}
	for svc := range st.Snapshot().Services() {
		for _, ep := range svc.Endpoints() {
			h.Key, h.Wire = len(ep.Key()), len(ep.Wire())
		}
	}
	records := make([]runtime.MemProfileRecord, 10_000)
	n, _ := runtime.MemProfile(records, false)
	for _, r := range records[:n] {
		h.By[allocator(&r)] += scaled(&r)
	}
	return h
}

// scaled estimates the live bytes of a record from its sample, as package pprof does.
func scaled(r *runtime.MemProfileRecord) int {
	if r.InUseObjects() == 0 {
		return 0
	}
	size := float64(r.InUseBytes()) / float64(r.InUseObjects())
	return int(float64(r.InUseBytes()) / (1 - math.Exp(-size/float64(runtime.MemProfileRate))))
}

// allocator names the function that an allocation is due to: the innermost of the store, else of this program.
func allocator(r *runtime.MemProfileRecord) string {
	frames := runtime.CallersFrames(r.Stack())
	for {
		frame, more := frames.Next()
		for _, of := range []string{"kpng/server/store.", "go-immutable-radix", "main."} {
			if at := strings.Index(frame.Function, of); at >= 0 {
				return strings.TrimPrefix(frame.Function[at:], "kpng/server/")
			}
		}
		if !more {
			return "other"
		}
	}
}
