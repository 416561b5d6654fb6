// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// globalState is what a watcher of globalv1 has been told: the state of snapshot.
type globalState struct {
	snapshot *store.Snapshot
	paths    globalPaths
	buf      []byte // kept from call to call to save allocations
}

// advance tells the difference to the given snapshot: nodes and services first, then endpoints, then the deletion
// of services and nodes.
func (s *globalState) advance(to *store.Snapshot, req *globalv1.GlobalWatchReq, w opWriter) (diff *store.Diff, ops int) {
	diff = to.Since(s.snapshot)
	ops += s.setNodes(diff, w)
	ops += s.setServices(diff, w)
	var triggers map[string]int64
	if req.GetTriggerTimes() {
		triggers = diff.Triggers()
	}
	for old, new := range diff.Services() {
		w.triggered(triggers[cmp.Or(new, old).Key()])
		ops += s.endpoints(old, new, w)
	}
	w.triggered(0)
	for old, new := range diff.Services() {
		if new == nil {
			w.remove(localv1.Set_GlobalServiceInfos, s.paths.service(old))
			ops++
		}
	}
	for old, new := range diff.Nodes() {
		if new == nil {
			w.remove(localv1.Set_GlobalNodeInfos, s.paths.node(old))
			ops++
		}
	}
	s.snapshot = to
	return diff, ops
}

func (s *globalState) setNodes(diff *store.Diff, w opWriter) (ops int) {
	for _, new := range diff.Nodes() {
		if new != nil {
			s.buf = new.AppendInfo(s.buf[:0])
			w.set(localv1.Set_GlobalNodeInfos, s.paths.node(new), string(s.buf), "")
			ops++
		}
	}
	return ops
}

func (s *globalState) setServices(diff *store.Diff, w opWriter) (ops int) {
	for old, new := range diff.Services() {
		if new != nil && (old == nil || old.Wire() != new.Wire() || old.PublishNotReady() != new.PublishNotReady() ||
			old.CreatedAt() != new.CreatedAt()) {
			s.buf = new.AppendInfo(s.buf[:0])
			w.set(localv1.Set_GlobalServiceInfos, s.paths.service(new), string(s.buf), "")
			ops++
		}
	}
	return ops
}

// endpoints tells the difference between two states of a service, either of which may be nil.
func (s *globalState) endpoints(old, new *store.Service, w opWriter) (ops int) {
	var before, after []*store.Endpoint
	if old != nil {
		before = old.Endpoints()
	}
	if new != nil {
		after = new.Endpoints()
	}
	for len(before) != 0 || len(after) != 0 {
		switch order := compareHeads(before, after); {
		case order < 0:
			w.remove(localv1.Set_GlobalEndpointInfos, s.paths.endpoint(old, before[0]))
			ops++
			before = before[1:]
		case order > 0 || before[0] != after[0]:
			if order == 0 {
				if was := s.paths.endpoint(old, before[0]); was != s.paths.endpoint(new, after[0]) {
					w.remove(localv1.Set_GlobalEndpointInfos, was)
					ops++
				}
				before = before[1:]
			}
			s.buf = after[0].AppendInfo(s.buf[:0], new)
			w.set(localv1.Set_GlobalEndpointInfos, s.paths.endpoint(new, after[0]), string(s.buf), "")
			ops++
			after = after[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
	return ops
}

func compareHeads(before, after []*store.Endpoint) int {
	switch {
	case len(after) == 0:
		return -1
	case len(before) == 0:
		return 1
	default:
		return cmp.Compare(before[0].Key(), after[0].Key())
	}
}
