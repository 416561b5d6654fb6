// SPDX-License-Identifier: Apache-2.0

package file

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/server/dump"
	"sigs.k8s.io/kpng/server/source/kube/translate"
	"sigs.k8s.io/kpng/server/store"
)

// key names an object. The namespace of a node is empty.
type key struct{ namespace, name string }

// state is what all files together want.
type state struct {
	services map[key]*globalv1.ServiceInfo
	slices   map[key]*store.Slice
	nodes    map[key]*globalv1.Node
}

func newState() *state {
	return &state{services: map[key]*globalv1.ServiceInfo{}, slices: map[key]*store.Slice{}, nodes: map[key]*globalv1.Node{}}
}

// collector gathers the state from the objects of several files. Of an object that is there several times, the last
// counts, as it would when the files were applied one after the other.
type collector struct {
	config *translate.Config

	services map[key]found[corev1.Service]
	slices   map[key]found[discoveryv1.EndpointSlice]
	nodes    map[key]found[corev1.Node]
	dumps    []*dump.State

	// notes are what the user should know of objects that are carried otherwise than written, or not at all.
	notes []string
	// ignored are the kinds that are not read, with their files.
	ignored []string
}

// found is an object, and the file it was in.
type found[O any] struct {
	object *O
	file   string
}

func newCollector(config *translate.Config) *collector {
	return &collector{
		config:   config,
		services: map[key]found[corev1.Service]{},
		slices:   map[key]found[discoveryv1.EndpointSlice]{},
		nodes:    map[key]found[corev1.Node]{},
	}
}

func (c *collector) note(file, format string, args ...any) {
	c.notes = append(c.notes, file+": "+fmt.Sprintf(format, args...))
}

func (c *collector) add(file string, objs *objects) {
	for _, svc := range objs.services {
		keep(c, c.services, file, "Service", key{svc.Namespace, svc.Name}, svc)
	}
	for _, slice := range objs.slices {
		keep(c, c.slices, file, "EndpointSlice", key{slice.Namespace, slice.Name}, slice)
	}
	for _, node := range objs.nodes {
		keep(c, c.nodes, file, "Node", key{"", node.Name}, node)
	}
	c.dumps = append(c.dumps, objs.dumps...)
	for _, field := range objs.unknown {
		c.note(file, "%s: ignored", field)
	}
	for _, kind := range objs.ignored {
		c.ignored = append(c.ignored, file+": "+kind)
	}
}

func keep[O any](c *collector, in map[key]found[O], file, kind string, k key, object *O) {
	if before, twice := in[k]; twice {
		c.note(file, "%s %s/%s is in %s too: the last one counts", kind, k.namespace, k.name, before.file)
	}
	in[k] = found[O]{object: object, file: file}
}

// state translates what is selected.
func (c *collector) state() *state {
	out := newState()
	for k, svc := range c.services {
		if !c.config.Selects(svc.object.Labels) {
			continue
		}
		info, problems := c.config.Service(svc.object)
		c.problems(svc.file, "Service", k, problems)
		if info != nil {
			out.services[k] = info
		}
	}
	for k, slice := range c.slices {
		if !c.selectsSlice(k, slice.object) {
			continue
		}
		translated, problems := translate.Slice(slice.object)
		c.problems(slice.file, "EndpointSlice", k, problems)
		if translated != nil {
			out.slices[k] = translated
		}
	}
	for k, node := range c.nodes {
		translated, problems := c.config.Node(node.object)
		c.problems(node.file, "Node", k, problems)
		if translated != nil {
			out.nodes[k] = translated
		}
	}
	for _, dumped := range c.dumps {
		out.addDump(dumped)
	}
	return out
}

func (c *collector) problems(file, kind string, k key, problems translate.Problems) {
	for _, problem := range problems {
		c.note(file, "%s %s/%s: %s", kind, k.namespace, k.name, problem)
	}
}

// selectsSlice follows the slice's own label, as a server would, and with a proxy name also its service's.
func (c *collector) selectsSlice(k key, slice *discoveryv1.EndpointSlice) bool {
	if c.config.Selects(slice.Labels) {
		return true
	}
	if c.config.ServiceProxyName == "" {
		return false
	}
	svc, there := c.services[key{k.namespace, slice.Labels[discoveryv1.LabelServiceName]}]
	return there && c.config.Selects(svc.object.Labels)
}

// addDump takes a dump as it is: what it holds was selected when it was written.
func (s *state) addDump(dumped *dump.State) {
	for _, info := range dumped.Services {
		s.services[key{info.Service.Namespace, info.Service.Name}] = info
	}
	for _, slice := range dumped.Slices {
		s.slices[key{slice.Namespace, slice.Name}] = slice
	}
	for _, node := range dumped.Nodes {
		s.nodes[key{"", node.Name}] = node
	}
}

// apply makes the store hold this state, given the one it held before.
func (s *state) apply(tx *store.Tx, before *state) {
	for k := range before.services {
		if s.services[k] == nil {
			tx.DeleteService(k.namespace, k.name)
		}
	}
	for k := range before.slices {
		if s.slices[k] == nil {
			tx.DeleteSlice(k.namespace, k.name)
		}
	}
	for k := range before.nodes {
		if s.nodes[k] == nil {
			tx.DeleteNode(k.name)
		}
	}
	for _, info := range s.services {
		tx.SetService(info)
	}
	for _, slice := range s.slices {
		tx.SetSlice(slice)
	}
	for _, node := range s.nodes {
		tx.SetNode(node)
	}
	tx.SetSynced()
}

// names is the state without its values: all that the next difference needs.
func (s *state) names() *state {
	return &state{services: named(s.services), slices: named(s.slices), nodes: named(s.nodes)}
}

func named[V any](in map[key]*V) map[key]*V {
	out := make(map[key]*V, len(in))
	for k := range in {
		out[k] = nil
	}
	return out
}
