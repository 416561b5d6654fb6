// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"sigs.k8s.io/kpng/api/globalv1"
)

// Tx is a change being made to the store. It is only valid inside [Store.Update].
type Tx struct {
	base     *Snapshot
	owners   map[string]string // see Store
	services *iradix.Txn[*Service]
	nodes    *iradix.Txn[*Node]
	size     Size
	synced   bool
	event    time.Time

	touched      map[string]trigger // by the keys of services, in no order
	touchedNodes map[string]bool
}

func newTx(base *Snapshot, owners map[string]string) *Tx {
	return &Tx{
		base:         base,
		owners:       owners,
		services:     base.services.Txn(),
		nodes:        base.nodes.Txn(),
		size:         base.size,
		synced:       base.synced,
		touched:      map[string]trigger{},
		touchedNodes: map[string]bool{},
	}
}

// SetEventTime tells when the source saw the first cause of this change, for measuring how long it takes to reach
// the watchers. Without it, that is the time of the commit.
func (tx *Tx) SetEventTime(t time.Time) { tx.event = t }

// SetSynced says that from this commit on the state is whole, even when it is empty.
func (tx *Tx) SetSynced() { tx.synced = true }

// SetService adds or replaces a service; its endpoints are kept. Service must have a namespace and a name. The
// message is not kept.
func (tx *Tx) SetService(info *globalv1.ServiceInfo) {
	svc := info.GetService()
	wire := marshal(svc)
	if wire == "" {
		return
	}
	key := svc.GetNamespace() + "/" + svc.GetName()
	old := tx.service(key)
	if old.wire == wire && old.publishNotReady == info.GetPublishNotReadyAddresses() && old.createdAt == info.GetCreatedAt() {
		return
	}
	new := *old
	new.wire = wire
	new.publishNotReady = info.GetPublishNotReadyAddresses()
	new.internalLocal = svc.GetInternalTrafficToLocal()
	new.externalLocal = svc.GetExternalTrafficToLocal()
	new.createdAt = info.GetCreatedAt()
	if headless := svc.GetIPs().GetHeadless(); new.headless != headless {
		new.headless = headless
		new.endpoints = mergeSlices(new.counting())
	}
	tx.put(old, &new, unknown)
}

// DeleteService removes a service. Its slices are kept until they are deleted.
func (tx *Tx) DeleteService(namespace, name string) {
	old := tx.service(namespace + "/" + name)
	if !old.Exists() {
		return
	}
	tx.put(old, &Service{key: old.key, headless: old.headless, slices: old.slices, endpoints: old.endpoints}, gone)
}

// SetSlice adds or replaces the endpoints of an EndpointSlice, also when its service is not there (yet). A slice
// that names another service than before moves there; one that names no service goes. The messages are not kept.
func (tx *Tx) SetSlice(s *Slice) {
	id := s.Namespace + "/" + s.Name
	if owner, known := tx.owners[id]; known && owner != s.Service {
		tx.DeleteSlice(s.Namespace, s.Name)
	}
	if s.Service == "" {
		return
	}
	old := tx.service(s.Namespace + "/" + s.Service)
	at, found := old.find(s.Name)
	var before []*Endpoint
	if found {
		before = old.slices[at].endpoints
	}
	after := newEndpoints(s.Endpoints, before)
	if found && slices.Equal(before, after) && old.slices[at].headless == s.Headless {
		return
	}
	new := *old
	sl := slice{name: shared(s.Name), headless: s.Headless, endpoints: after}
	if found {
		new.slices = slices.Clone(old.slices)
		new.slices[at] = sl
	} else {
		new.slices = slices.Insert(slices.Clone(old.slices), at, sl)
	}
	new.endpoints = mergeSlices(new.counting())
	tx.owners[id] = s.Service
	tx.put(old, &new, triggerAt(s.TriggeredAt))
}

// DeleteSlice removes an EndpointSlice.
func (tx *Tx) DeleteSlice(namespace, name string) {
	id := namespace + "/" + name
	owner, known := tx.owners[id]
	if !known {
		return
	}
	delete(tx.owners, id)
	old := tx.service(namespace + "/" + owner)
	at, found := old.find(name)
	if !found {
		return
	}
	new := *old
	new.slices = slices.Delete(slices.Clone(old.slices), at, at+1)
	new.endpoints = mergeSlices(new.counting())
	tx.put(old, &new, gone)
}

// SetNode adds or replaces a node. The message is not kept.
func (tx *Tx) SetNode(info *globalv1.Node) {
	wire := marshal(info)
	if wire == "" {
		return
	}
	name := info.GetName()
	old, found := tx.nodes.Get([]byte(name))
	if found && old.wire == wire {
		return
	}
	tx.nodes.Insert([]byte(name), &Node{name: name, zone: shared(info.GetTopology().GetZone()), wire: wire})
	tx.touchedNodes[name] = true
}

// DeleteNode removes a node.
func (tx *Tx) DeleteNode(name string) {
	if _, found := tx.nodes.Delete([]byte(name)); found {
		tx.touchedNodes[name] = true
	}
}

// Service returns what is held under a key (namespace/name) at this point of the change, or nil.
func (tx *Tx) Service(key string) *Service {
	svc, _ := tx.services.Get([]byte(key))
	return svc
}

// service is Service, with an empty value instead of nil.
func (tx *Tx) service(key string) *Service {
	if svc := tx.Service(key); svc != nil {
		return svc
	}
	return &Service{key: key}
}

func (s *Service) find(slice string) (int, bool) {
	return slices.BinarySearchFunc(s.slices, slice, sliceByName)
}

func sliceByName(s slice, name string) int { return cmp.Compare(s.name, name) }

// put replaces old with new, which is dropped when nothing is left in it.
func (tx *Tx) put(old, new *Service, why trigger) {
	tx.size.Services += count(new) - count(old)
	tx.size.Slices += len(new.slices) - len(old.slices)
	tx.size.Endpoints += len(new.endpoints) - len(old.endpoints)
	tx.touched[new.key] = tx.touched[new.key].with(why)
	if new.empty() {
		tx.services.Delete([]byte(new.key))
		return
	}
	tx.services.Insert([]byte(new.key), new)
}

func count(s *Service) int {
	if s.Exists() {
		return 1
	}
	return 0
}

// commit returns the snapshot after the change, or nil when nothing changed.
func (tx *Tx) commit(now time.Time) *Snapshot {
	if len(tx.touched) == 0 && len(tx.touchedNodes) == 0 && tx.synced == tx.base.synced {
		return nil
	}
	if tx.event.IsZero() {
		tx.event = now
	}
	revision := tx.base.revision + 1
	changes := make([]change, 0, len(tx.touched)+len(tx.touchedNodes))
	for key, trigger := range tx.touched {
		changes = append(changes, change{revision: revision, event: tx.event.UnixNano(), trigger: trigger, key: key})
	}
	for key := range tx.touchedNodes {
		changes = append(changes, change{revision: revision, event: tx.event.UnixNano(), node: true, key: key})
	}
	next := &Snapshot{
		revision: revision,
		synced:   tx.synced,
		services: tx.services.CommitOnly(),
		nodes:    tx.nodes.CommitOnly(),
		history:  tx.base.history.with(changes, revision),
		size:     tx.size,
	}
	next.size.Nodes = next.nodes.Len()
	return next
}
