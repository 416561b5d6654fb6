// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/binary"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/server/source/kube/translate"
	"sigs.k8s.io/kpng/server/store"
)

// kind tells the three collections apart.
type kind int

const (
	serviceKind kind = iota
	sliceKind
	nodeKind
)

func (k kind) String() string {
	return [...]string{"Service", "EndpointSlice", "Node"}[k]
}

// key names an object. The namespace of a node is empty.
type key struct{ namespace, name string }

func (k key) String() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// item is a translated object. It has just enough metadata to be put into the temporary store of a Reflector, so that
// not even there an object is held untranslated.
type item struct {
	metav1.ObjectMeta // namespace and name only

	// version is the resource version as a number, which the API defines to be comparable within a resource
	// (KEP-5504); 0 when it is not one.
	version uint64
	// digest is of all that follows. Two items of the same object with the same digest are the same.
	digest uint64

	// triggered is when what made a slice change to this happened; zero when that is not known. Not part of the digest.
	triggered time.Time

	// set tells the store; nil when the object is not carried.
	set func(tx *store.Tx)
	// handwritten is true for a service whose slices must be looked for by its name.
	handwritten bool
	problems    translate.Problems
}

func (i *item) key() key { return key{i.Namespace, i.Name} }

func newItem(meta metav1.Object) *item {
	version, err := strconv.ParseUint(meta.GetResourceVersion(), 10, 64)
	if err != nil {
		version = 0
	}
	return &item{ObjectMeta: metav1.ObjectMeta{Namespace: meta.GetNamespace(), Name: meta.GetName()}, version: version}
}

// digester hashes what an item says.
type digester struct {
	xxhash.Digest
	buffer []byte
}

func newDigester(i *item) *digester {
	d := &digester{}
	d.Reset()
	d.text(strconv.FormatBool(i.handwritten))
	for _, problem := range i.problems {
		d.text(problem)
	}
	return d
}

func (d *digester) text(s string) {
	d.buffer = binary.BigEndian.AppendUint32(d.buffer[:0], uint32(len(s)))
	_, _ = d.Write(d.buffer) // never fails
	_, _ = d.WriteString(s)
}

func (d *digester) message(m proto.Message) {
	// What cannot be encoded (text that is not UTF-8) is reported by the store.
	d.buffer, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(d.buffer[:0], m)
	size := len(d.buffer)
	_, _ = d.Write(d.buffer)
	d.text(strconv.Itoa(size))
}

func serviceItem(c *translate.Config, svc *corev1.Service) *item {
	i := newItem(svc)
	info, problems := c.Service(svc)
	i.problems = problems
	i.handwritten = info != nil && c.ServiceProxyName != "" && translate.Handwritten(svc)
	digest := newDigester(i)
	if info != nil {
		digest.message(info)
		i.set = func(tx *store.Tx) { tx.SetService(info) }
	}
	i.digest = digest.Sum64()
	return i
}

func sliceItem(es *discoveryv1.EndpointSlice) *item {
	i := newItem(es)
	slice, problems := translate.Slice(es)
	i.problems = problems
	digest := newDigester(i)
	if slice != nil {
		digest.text(slice.Service + strconv.FormatBool(slice.Headless))
		for _, ep := range slice.Endpoints {
			digest.message(ep)
		}
		i.triggered = lastTrigger(es)
		i.set = func(tx *store.Tx) {
			slice.TriggeredAt = i.triggered
			tx.SetSlice(slice)
		}
	}
	i.digest = digest.Sum64()
	return i
}

// lastTrigger reads the annotation in which the controller says since when there was something to change in a slice.
func lastTrigger(es *discoveryv1.EndpointSlice) time.Time {
	at, err := time.Parse(time.RFC3339Nano, es.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{} // mostly, there is none
	}
	return at
}

func nodeItem(c *translate.Config, meta metav1.Object) *item {
	i := newItem(meta)
	node, problems := c.Node(meta)
	i.problems = problems
	digest := newDigester(i)
	if node != nil {
		digest.message(node)
		i.set = func(tx *store.Tx) { tx.SetNode(node) }
	}
	i.digest = digest.Sum64()
	return i
}
