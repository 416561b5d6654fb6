// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// follower turns ops into the state of a store.
//
// Its life: ops change what is noted here; at Sync, what was touched goes to the store in one commit. A Reset (and
// the beginning of a stream) only notes that everything has to be told again, so that a server that restarts
// changes nothing but what really differs; what was not told again by the next Sync is gone. A stream that breaks
// within a set leaves the store as it was.
type follower struct {
	store *store.Store

	services  map[string]serviceName // by path
	nodes     map[string]string      // name by path
	endpoints map[string]sliceName   // by path
	slices    map[sliceName]slice

	untold map[value]bool // with a Reset pending: what was not told again yet
	event  time.Time      // when the first op of the set came

	// The changes since the last Sync: nil means gone.
	setServices map[serviceName]*globalv1.ServiceInfo
	setNodes    map[string]*globalv1.Node
	setSlices   map[sliceName]int64 // with OpItem.TriggeredAt, the earliest if there are several

	triggered int64 // OpItem.TriggeredAt of the op being applied
}

// value is the place of a value on the stream.
type value struct {
	set  localv1.Set
	path string
}

type serviceName struct{ namespace, name string }

// sliceName names an EndpointSlice of a service.
type sliceName struct{ namespace, service, name string }

// slice holds the marshalled globalv1.EndpointInfo of each endpoint, by path.
type slice map[string]string

func newFollower(st *store.Store) *follower {
	f := &follower{
		store:     st,
		services:  map[string]serviceName{},
		nodes:     map[string]string{},
		endpoints: map[string]sliceName{},
		slices:    map[sliceName]slice{},
	}
	f.clean()
	return f
}

// clean forgets the changes that have been committed.
func (f *follower) clean() {
	f.setServices = map[serviceName]*globalv1.ServiceInfo{}
	f.setNodes = map[string]*globalv1.Node{}
	f.setSlices = map[sliceName]int64{}
	f.event = time.Time{}
}

// begin starts a new stream.
func (f *follower) begin() { f.reset() }

func (f *follower) reset() {
	f.untold = map[value]bool{}
	for path := range f.services {
		f.untold[value{localv1.Set_GlobalServiceInfos, path}] = true
	}
	for path := range f.nodes {
		f.untold[value{localv1.Set_GlobalNodeInfos, path}] = true
	}
	for path := range f.endpoints {
		f.untold[value{localv1.Set_GlobalEndpointInfos, path}] = true
	}
}

// apply takes an op, and says whether it ended the set. What cannot be understood is skipped.
func (f *follower) apply(op *localv1.OpItem) (synced bool) {
	if f.event.IsZero() {
		f.event = time.Now()
	}
	f.triggered = op.GetTriggeredAt()
	switch op := op.GetOp().(type) {
	case *localv1.OpItem_Batch:
		for _, inner := range op.Batch.GetOps() {
			if _, nested := inner.GetOp().(*localv1.OpItem_Batch); nested {
				klog.InfoS("Skipped a batch within a batch")
				continue
			}
			synced = f.apply(inner) || synced
		}
		return synced
	case *localv1.OpItem_Reset_:
		f.reset()
	case *localv1.OpItem_Set:
		f.set(op.Set.GetRef(), op.Set.GetBytes())
	case *localv1.OpItem_Delete:
		f.remove(op.Delete.GetSet(), op.Delete.GetPath())
	case *localv1.OpItem_Sync:
		f.sync()
		return true
	default:
		klog.V(1).InfoS("Skipped an op of unknown kind")
	}
	return false
}

func (f *follower) set(ref *localv1.Ref, bytes []byte) {
	path := ref.GetPath()
	delete(f.untold, value{ref.GetSet(), path})
	var err error
	switch ref.GetSet() {
	case localv1.Set_GlobalServiceInfos:
		info := &globalv1.ServiceInfo{}
		if err = proto.Unmarshal(bytes, info); err == nil && info.GetService().GetName() != "" {
			f.setService(path, info)
		}
	case localv1.Set_GlobalNodeInfos:
		info := &globalv1.NodeInfo{}
		if err = proto.Unmarshal(bytes, info); err == nil && info.GetNode().GetName() != "" {
			f.nodes[path] = info.GetNode().GetName()
			f.setNodes[info.GetNode().GetName()] = info.GetNode()
		}
	case localv1.Set_GlobalEndpointInfos:
		info := &globalv1.EndpointInfo{}
		if err = proto.Unmarshal(bytes, info); err == nil && info.GetServiceName() != "" && !retiredIndex(path) {
			f.setEndpoint(path, info, string(bytes))
		}
	default:
		klog.V(1).InfoS("Skipped a value of an unknown set", "set", ref.GetSet(), "path", path)
	}
	if err != nil {
		klog.ErrorS(err, "Skipped a value that cannot be read", "set", ref.GetSet(), "path", path)
	}
}

// retiredIndex says whether a path is one of the entries that the retired kpng sends a second time, without the
// service's name (namespace||source|key).
func retiredIndex(path string) bool {
	parts := strings.Split(path, "|")
	return len(parts) == 4 && parts[1] == ""
}

func (f *follower) setService(path string, info *globalv1.ServiceInfo) {
	name := serviceName{info.GetService().GetNamespace(), info.GetService().GetName()}
	f.services[path] = name
	f.setServices[name] = info
}

func (f *follower) setEndpoint(path string, info *globalv1.EndpointInfo, bytes string) {
	name := sliceName{info.GetNamespace(), info.GetServiceName(), info.GetSourceName()}
	if was, known := f.endpoints[path]; known && was != name {
		f.removeEndpoint(path)
	}
	if f.slices[name][path] == bytes {
		return
	}
	if f.slices[name] == nil {
		f.slices[name] = slice{}
	}
	f.slices[name][path] = bytes
	f.endpoints[path] = name
	f.touch(name)
}

func (f *follower) remove(set localv1.Set, path string) {
	delete(f.untold, value{set, path})
	switch set {
	case localv1.Set_GlobalServiceInfos:
		if name, known := f.services[path]; known {
			f.setServices[name] = nil
		}
		delete(f.services, path)
	case localv1.Set_GlobalNodeInfos:
		if name, known := f.nodes[path]; known {
			f.setNodes[name] = nil
		}
		delete(f.nodes, path)
	case localv1.Set_GlobalEndpointInfos:
		f.removeEndpoint(path)
	default:
		klog.V(1).InfoS("Skipped a deletion from an unknown set", "set", set, "path", path)
	}
}

func (f *follower) removeEndpoint(path string) {
	name, known := f.endpoints[path]
	if !known {
		return
	}
	delete(f.endpoints, path)
	delete(f.slices[name], path)
	if len(f.slices[name]) == 0 {
		delete(f.slices, name)
	}
	f.touch(name)
}

// touch notes that a slice changed, and what the op says of when that was triggered.
func (f *follower) touch(name sliceName) {
	at := f.setSlices[name]
	if f.triggered > 0 && (at == 0 || f.triggered < at) {
		at = f.triggered
	}
	f.setSlices[name] = at
}

// sync drops what a reset left untold and commits all changes at once.
func (f *follower) sync() {
	for v := range f.untold {
		f.remove(v.set, v.path)
	}
	f.untold = nil
	f.store.Update(func(tx *store.Tx) {
		tx.SetEventTime(f.event)
		tx.SetSynced()
		f.commit(tx)
	})
	f.clean()
}

func (f *follower) commit(tx *store.Tx) {
	for name, info := range f.setNodes {
		if info == nil {
			tx.DeleteNode(name)
		} else {
			tx.SetNode(info)
		}
	}
	for name, info := range f.setServices {
		if info == nil {
			tx.DeleteService(name.namespace, name.name)
		} else {
			tx.SetService(info)
		}
	}
	// Deletions first: a slice that moved is gone under its old service and set under its new one.
	for name := range f.setSlices {
		if len(f.slices[name]) == 0 {
			tx.DeleteSlice(name.namespace, name.name)
		}
	}
	for name, at := range f.setSlices {
		if len(f.slices[name]) != 0 {
			slice := f.decode(name)
			if at != 0 {
				slice.TriggeredAt = time.Unix(0, at)
			}
			tx.SetSlice(slice)
		}
	}
}

// decode reads the endpoints of a slice back.
func (f *follower) decode(name sliceName) *store.Slice {
	out := &store.Slice{Namespace: name.namespace, Name: name.name, Service: name.service}
	for path, bytes := range f.slices[name] {
		info := &globalv1.EndpointInfo{}
		if err := proto.Unmarshal([]byte(bytes), info); err != nil {
			klog.ErrorS(err, "Skipped an endpoint that cannot be read", "path", path)
			continue
		}
		out.Endpoints = append(out.Endpoints, info)
	}
	return out
}
