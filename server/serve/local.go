// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"

	"google.golang.org/protobuf/encoding/protowire"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
	"sigs.k8s.io/kpng/server/view"
)

// localState is what a watcher of localv1 has been told: the state of snapshot, by a query.
type localState struct {
	snapshot *store.Snapshot
	query    view.Query

	// kept from call to call to save allocations
	before, after []view.Endpoint
}

// serviceCreatedAt is the number of that field of localv1.Service, see api/localv1/api.proto.
const serviceCreatedAt = 14

// age is what is appended to the message of a service for those who ask for it: marshalled fields in any order are one
// message.
func age(svc *store.Service, query view.Query) string {
	if !query.AllEndpoints || svc.CreatedAt() == 0 {
		return ""
	}
	b := protowire.AppendTag(nil, serviceCreatedAt, protowire.VarintType)
	return string(protowire.AppendVarint(b, uint64(svc.CreatedAt())))
}

// advance tells the difference to the given snapshot, as the request asks for it: services first, then endpoints,
// then the deletion of services, so that at no point there is an endpoint without its service.
func (s *localState) advance(to *store.Snapshot, req *localv1.WatchReq, w opWriter) (diff *store.Diff, ops int) {
	query := view.Query{Node: view.At(to, req.GetNodeName()), AllEndpoints: req.GetAllEndpoints()}
	diff = to.Since(s.snapshot)

	affected := diff.Services()
	if s.snapshot != nil && query != s.query {
		affected = diff.AllServices() // from another place, or for other eyes, every service may look different
	}
	for old, new := range affected {
		if new != nil && (old == nil || old.Wire() != new.Wire() || age(old, s.query) != age(new, query)) {
			w.set(localv1.Set_ServicesSet, path{key: new.Key()}, new.Wire(), age(new, query))
			ops++
		}
	}
	var triggers map[string]int64
	if req.GetTriggerTimes() {
		triggers = diff.Triggers()
	}
	for old, new := range affected {
		w.triggered(triggers[cmp.Or(new, old).Key()])
		ops += s.endpoints(old, new, query, w)
	}
	w.triggered(0)
	for old, new := range diff.Services() {
		if new == nil {
			w.remove(localv1.Set_ServicesSet, path{key: old.Key()})
			ops++
		}
	}

	s.snapshot, s.query = to, query
	return diff, ops
}

// endpoints tells the difference between two states of a service, either of which may be nil.
func (s *localState) endpoints(old, new *store.Service, query view.Query, w opWriter) (ops int) {
	svc := cmp.Or(new, old)
	s.before = view.Endpoints(s.before[:0], old, s.query)
	s.after = view.Endpoints(s.after[:0], new, query)
	view.Diff(s.before, s.after,
		func(key string) {
			w.remove(localv1.Set_EndpointsSet, path{svc.Key(), key})
			ops++
		},
		func(ep view.Endpoint) {
			w.set(localv1.Set_EndpointsSet, path{svc.Key(), ep.Key()}, ep.Wire(), ep.Scope.Suffix())
			ops++
		})
	return ops
}
