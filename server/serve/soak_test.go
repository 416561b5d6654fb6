// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/testing/protocmp"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// TestSoak makes random changes at full speed while watchers of all kinds follow over gRPC, some of them slow, some
// coming and going. At each quiet point, what every watcher holds is compared with an independent, naive model of
// the right answer; at every op, the protocol is checked. KPNG_SOAK=10m makes it run that long.
func TestSoak(t *testing.T) {
	duration := 3 * time.Second
	if s := os.Getenv("KPNG_SOAK"); s != "" {
		var err error
		duration, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := newModel(seed)
	st := store.New()
	target := serveOn(t, st)
	st.Update(func(tx *store.Tx) { m.change(tx); tx.SetSynced() })

	all := map[string]*follower{}
	rounds := 0
	for end := time.Now().Add(duration); time.Now().Before(end); rounds++ {
		renew(t, target, m.random, all)
		marker := fmt.Sprintf("marker-%d", rounds) // a service that comes last, for which all wait
		var following sync.WaitGroup
		for _, f := range all {
			following.Go(func() { f.until("ns/" + marker) })
		}
		for range 300 {
			st.Update(m.change)
		}
		st.Update(func(tx *store.Tx) { m.setService(tx, marker, 0) })
		following.Wait()
		for name, f := range all {
			require.NoError(t, f.err, name)
			require.Empty(t, cmp.Diff(m.expect(f.node), f.plain(), protocmp.Transform()), "%s in round %d", name, rounds)
		}
		st.Update(func(tx *store.Tx) { m.deleteService(tx, marker) })
	}
	t.Logf("%d rounds", rounds)
}

// follower is a watcher that asks for more until it is told to stop.
type follower struct {
	*watch
	node  string
	pause time.Duration // before each request
	err   error
}

// renew starts a follower for each node and way of asking, and replaces some of those that are there.
func renew(t *testing.T, target string, random *rand.Rand, all map[string]*follower) {
	for _, node := range []string{"n1", "n2", "unknown"} {
		for _, batch := range []bool{true, false} {
			name := fmt.Sprintf("%s, batch=%v", node, batch)
			old := all[name]
			if old != nil && random.IntN(3) != 0 {
				continue
			}
			if old != nil {
				old.cancel()
			}
			all[name] = &follower{
				watch: watchLocal(t, target, node, batch), node: node,
				pause: time.Duration(random.IntN(3)) * time.Millisecond,
			}
		}
	}
}

// until follows until a service is there, then stops asking.
func (f *follower) until(service string) {
	for f.err == nil && f.state["ServicesSet "+service] == nil {
		time.Sleep(f.pause)
		f.err = f.next()
	}
}

// plain is what the follower holds, with the endpoints by address.
func (f *follower) plain() map[string]*localv1.Endpoint {
	out := map[string]*localv1.Endpoint{}
	for place, value := range f.state {
		switch value := value.(type) {
		case *localv1.Service:
			out[value.Namespace+"/"+value.Name] = nil
		case *localv1.Endpoint:
			path := strings.TrimPrefix(place, "EndpointsSet ")
			out[path[:strings.LastIndex(path, "-")]] = value
		}
	}
	return out
}

// model is the right answer, computed in the plainest way: everything, each time.
type model struct {
	random   *rand.Rand
	services map[string]*globalv1.ServiceInfo
	slices   map[string]*store.Slice
	zones    map[string]string
}

func newModel(seed uint64) *model {
	return &model{
		random:   rand.New(rand.NewPCG(seed, 0)),
		services: map[string]*globalv1.ServiceInfo{}, slices: map[string]*store.Slice{}, zones: map[string]string{},
	}
}

func (m *model) change(tx *store.Tx) {
	name := fmt.Sprintf("svc-%d", m.random.IntN(20))
	switch m.random.IntN(8) {
	case 0, 1:
		m.setService(tx, name, m.random.IntN(8))
	case 2:
		m.deleteService(tx, name)
	case 3, 4, 5:
		m.setSlice(tx, name)
	case 6:
		id := m.sliceName()
		delete(m.slices, id)
		tx.DeleteSlice("ns", id)
	case 7:
		node := fmt.Sprintf("n%d", 1+m.random.IntN(2))
		m.zones[node] = []string{"", "z1", "z2"}[m.random.IntN(3)]
		tx.SetNode(&globalv1.Node{Name: node, Topology: &globalv1.TopologyInfo{Node: node, Zone: m.zones[node]}})
	}
}

func (m *model) setService(tx *store.Tx, name string, policies int) {
	info := service(name)
	info.Service.InternalTrafficToLocal = policies&1 != 0
	info.Service.ExternalTrafficToLocal = policies&2 != 0
	info.PublishNotReadyAddresses = policies&4 != 0
	m.services[name] = info
	tx.SetService(info)
}

func (m *model) deleteService(tx *store.Tx, name string) {
	delete(m.services, name)
	tx.DeleteService("ns", name)
}

func (m *model) sliceName() string { return fmt.Sprintf("slice-%d", m.random.IntN(30)) }

// setSlice sets a slice of one to three endpoints. Their addresses belong to the slice, so that there are no
// duplicates, which the model does not know.
func (m *model) setSlice(tx *store.Tx, owner string) {
	id := m.sliceName()
	s := &store.Slice{Namespace: "ns", Name: id, Service: owner}
	hinted := m.random.IntN(2) == 0
	for i := range 1 + m.random.IntN(3) {
		condition := m.random.IntN(8)
		ep := &globalv1.EndpointInfo{
			Namespace: "ns", SourceName: id, ServiceName: owner,
			Endpoint:   &localv1.Endpoint{IPs: localv1.NewIPSet(fmt.Sprintf("10.0.%s.%d", strings.TrimPrefix(id, "slice-"), i))},
			Conditions: &globalv1.EndpointConditions{Ready: condition&1 != 0, Serving: condition&2 != 0, Terminating: condition&4 != 0},
			Topology:   &globalv1.TopologyInfo{Node: fmt.Sprintf("n%d", 1+m.random.IntN(3))},
		}
		if hinted {
			ep.Hints = &globalv1.TopologyHints{Zones: []string{fmt.Sprintf("z%d", 1+m.random.IntN(2))}}
			if m.random.IntN(2) == 0 {
				ep.Hints.Nodes = []string{fmt.Sprintf("n%d", 1+m.random.IntN(2))}
			}
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	m.slices[id] = s
	tx.SetSlice(s)
}

// expect is what a node should hold.
func (m *model) expect(node string) map[string]*localv1.Endpoint {
	out := map[string]*localv1.Endpoint{}
	for name, info := range m.services {
		out["ns/"+name] = nil
		var all []*globalv1.EndpointInfo
		for _, id := range slices.Sorted(maps.Keys(m.slices)) {
			if m.slices[id].Service == name {
				all = append(all, m.slices[id].Endpoints...)
			}
		}
		ready := func(e *globalv1.EndpointInfo) bool { return e.Conditions.Ready || info.PublishNotReadyAddresses }
		local := func(e *globalv1.EndpointInfo) bool { return e.Topology.Node == node }
		cluster := naiveHints(filter(all, ready), node, m.zones[node])
		if len(cluster) == 0 {
			cluster = filter(all, dying)
		}
		here := filter(filter(all, ready), local)
		if len(here) == 0 {
			here = filter(filter(all, dying), local)
		}
		internal, external := cluster, cluster
		if info.Service.InternalTrafficToLocal {
			internal = here
		}
		if info.Service.ExternalTrafficToLocal {
			external = here
		}
		for _, e := range all {
			in, ex := slices.Contains(internal, e), slices.Contains(external, e)
			if in || ex {
				out["ns/"+name+"/"+e.Endpoint.IPs.V4[0]] = &localv1.Endpoint{
					IPs: e.Endpoint.IPs, Local: local(e), Scopes: &localv1.EndpointScopes{Internal: in, External: ex},
				}
			}
		}
	}
	return out
}

func dying(e *globalv1.EndpointInfo) bool { return e.Conditions.Serving && e.Conditions.Terminating }

func filter(all []*globalv1.EndpointInfo, keep func(*globalv1.EndpointInfo) bool) (out []*globalv1.EndpointInfo) {
	for _, e := range all {
		if keep(e) {
			out = append(out, e)
		}
	}
	return out
}

func naiveHints(ready []*globalv1.EndpointInfo, node, zone string) []*globalv1.EndpointInfo {
	for _, hints := range []struct {
		of    func(*globalv1.EndpointInfo) []string
		place string
	}{
		{func(e *globalv1.EndpointInfo) []string { return e.GetHints().GetNodes() }, node},
		{func(e *globalv1.EndpointInfo) []string { return e.GetHints().GetZones() }, zone},
	} {
		all := len(filter(ready, func(e *globalv1.EndpointInfo) bool { return len(hints.of(e)) != 0 })) == len(ready)
		mine := filter(ready, func(e *globalv1.EndpointInfo) bool {
			return hints.place != "" && slices.Contains(hints.of(e), hints.place)
		})
		if all && len(mine) != 0 {
			return mine
		}
	}
	return ready
}
