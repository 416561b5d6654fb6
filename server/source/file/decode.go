// SPDX-License-Identifier: Apache-2.0

package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"sigs.k8s.io/kpng/server/dump"
)

// objects are what a file holds, in its order.
type objects struct {
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
	nodes    []*corev1.Node
	dumps    []*dump.State

	unknown []string // fields that are not known
	ignored []string // kinds that are not read
}

// decodeFile reads all objects of a file. The error names the line.
func decodeFile(data []byte) (*objects, error) {
	docs, err := documents(data)
	if err != nil {
		return nil, err
	}
	out := &objects{}
	for _, doc := range docs {
		if err := out.add(doc.json, typeOf(doc.json)); err != nil {
			return nil, &lineError{line: doc.line, err: fmt.Errorf("document %d: %w", doc.number, oneLine(err))}
		}
	}
	return out, nil
}

// typeOf returns what an object says it is; nothing when it says nothing (then add complains).
func typeOf(raw []byte) metav1.TypeMeta {
	var meta metav1.TypeMeta
	if json.Unmarshal(raw, &meta) != nil {
		return metav1.TypeMeta{}
	}
	return meta
}

func (o *objects) add(raw []byte, meta metav1.TypeMeta) error {
	switch what := meta.APIVersion + " " + meta.Kind; what {
	case "v1 Service":
		svc := &corev1.Service{}
		o.services = append(o.services, svc)
		return o.decode(raw, meta.Kind, svc)
	case "discovery.k8s.io/v1 EndpointSlice":
		slice := &discoveryv1.EndpointSlice{}
		o.slices = append(o.slices, slice)
		return o.decode(raw, meta.Kind, slice)
	case "v1 Node":
		node := &corev1.Node{}
		o.nodes = append(o.nodes, node)
		return o.decode(raw, meta.Kind, node)
	case dump.APIVersion + " " + dump.Kind:
		state, err := dump.Read(raw)
		if err != nil {
			return err
		}
		o.unknown = append(o.unknown, state.Unknown...)
		o.dumps = append(o.dumps, state)
		return nil
	case "v1 List", "v1 ServiceList", "v1 NodeList", "discovery.k8s.io/v1 EndpointSliceList":
		return o.addList(raw, meta)
	default:
		if meta.APIVersion == "" || meta.Kind == "" {
			return errors.New("no apiVersion or no kind: not a Kubernetes object")
		}
		o.ignored = append(o.ignored, what)
		return nil
	}
}

func (o *objects) addList(raw []byte, meta metav1.TypeMeta) error {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("%s: %w", meta.Kind, err)
	}
	for i, item := range list.Items {
		of := typeOf(item)
		if of.Kind == "" && meta.Kind != "List" { // the items of a typed list need not say what they are
			of = metav1.TypeMeta{APIVersion: meta.APIVersion, Kind: strings.TrimSuffix(meta.Kind, "List")}
		}
		if strings.HasSuffix(of.Kind, "List") {
			return fmt.Errorf("items[%d]: a %s within a %s", i, of.Kind, meta.Kind)
		}
		if err := o.add(item, of); err != nil {
			return fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return nil
}

// decode is as strict as an API server: names of fields are case-sensitive, types must fit. Fields that are not known
// are noted, since the manifest may be for a newer Kubernetes than the one kpng was built with.
func (o *objects) decode(raw []byte, kind string, into metav1.Object) error {
	unknown, err := kjson.UnmarshalStrict(raw, into)
	name := strings.TrimPrefix(into.GetNamespace()+"/"+into.GetName(), "/")
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	if into.GetName() == "" {
		return fmt.Errorf("%s: metadata.name is missing", kind)
	}
	for _, field := range unknown {
		o.unknown = append(o.unknown, fmt.Sprintf("%s %s: %v", kind, name, field))
	}
	if into.GetNamespace() == "" && kind != "Node" {
		into.SetNamespace(metav1.NamespaceDefault)
	}
	return nil
}
