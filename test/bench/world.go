// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"sync"
)

const (
	namespace = "bench"
	proxyName = "bench"
	// nodeCount is how many nodes the endpoints are spread over; a watcher is on one of them.
	nodeCount = 100
	basePort  = 8080
)

// world is the independent model: what is served, and so what every watcher must hold. It knows nothing of kpng's
// code: a state is a sum of numbers, one for each service and for each endpoint that a node may use.
//
// Every state that a service ever had since the last quiet point is remembered. A change is entered here before it is
// made, so what a watcher holds at a Sync is one of them, or the watcher was shown a state that never was.
type world struct {
	services  int
	endpoints int // of each service

	mu     sync.RWMutex
	states []serviceState
	valid  [][]uint64 // by service
	total  uint64
}

// serviceState is what changes of a service: the port of all its endpoints at once, and which endpoint is not ready.
type serviceState struct {
	Service int
	Port    int
	Down    int // -1: none
}

func newWorld(services, endpoints int) *world {
	w := &world{services: services, endpoints: endpoints, states: make([]serviceState, services), valid: make([][]uint64, services)}
	for i := range services {
		w.states[i] = serviceState{Service: i, Port: basePort, Down: -1}
		w.valid[i] = []uint64{w.digest(w.states[i])}
		w.total += serviceDigest(i) + w.valid[i][0]
	}
	return w
}

// digest is the sum over the endpoints of a service that may be used.
func (w *world) digest(s serviceState) (sum uint64) {
	for j := range w.endpoints {
		if j != s.Down {
			sum += endpointDigest(w.address(s.Service, j), s.Port)
		}
	}
	return sum
}

// change enters a change, and returns what every watcher must hold once all changes so far are made.
func (w *world) change(s serviceState) (total uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, after := w.digest(w.states[s.Service]), w.digest(s)
	w.states[s.Service] = s
	w.total += after - before
	if !slices.Contains(w.valid[s.Service], after) {
		w.valid[s.Service] = append(w.valid[s.Service], after)
	}
	return w.total
}

// toggle takes an endpoint of a service away, or gives it back.
func (w *world) toggle(service, endpoint int) (s serviceState, total uint64) {
	s = w.state(service)
	if s.Down >= 0 {
		s.Down = -1
	} else {
		s.Down = endpoint % w.endpoints
	}
	return s, w.change(s)
}

func (w *world) state(service int) serviceState {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.states[service]
}

// quiet forgets the states that are no longer: all watchers have been seen to be past them.
func (w *world) quiet() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, s := range w.states {
		w.valid[i] = []uint64{w.digest(s)}
	}
}

// expected is what every watcher must hold.
func (w *world) expected() uint64 {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.total
}

// was says whether a service ever had a state of that digest.
func (w *world) was(service int, digest uint64) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return slices.Contains(w.valid[service], digest)
}

// address is the number of an endpoint's address, see addressText.
func (w *world) address(service, endpoint int) uint32 {
	return uint32(service*w.endpoints + endpoint)
}

// addressText is 10.0.0.0 and what follows.
func addressText(n uint32) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }

// nodeOf is the number of the node that an endpoint is on.
func nodeOf(address uint32) int { return int(address % nodeCount) }

func nodeName(n int) string { return fmt.Sprintf("node-%d", n%nodeCount) }

func serviceName(i int) string { return fmt.Sprintf("svc-%06d", i) }

func serviceDigest(i int) uint64 { return mix(uint64(i) | 1<<63) }

func endpointDigest(address uint32, port int) uint64 { return mix(uint64(address)<<20 | uint64(port)) }

// mix spreads a number over 64 bits (the finalizer of splitmix64), so that sums of such numbers tell sets apart.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
