// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kpng/server/store"
)

// Write writes a snapshot.
func Write(w io.Writer, snapshot *store.Snapshot) error {
	return (&writer{}).write(w, snapshot)
}

// writer remembers the text of what it wrote, so that writing again costs what changed.
type writer struct {
	services map[*store.Service]serviceText
	nodes    map[*store.Node]string
}

type serviceText struct{ service, slices string }

func (d *writer) write(to io.Writer, snapshot *store.Snapshot) error {
	if err := d.render(snapshot); err != nil {
		return err
	}
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "# The state of kpng at one moment. Read it back with: kpng file -i THIS\napiVersion: %s\nkind: %s\n", APIVersion, Kind)
	section := func(name string, texts func(yield func(string))) {
		empty := true
		texts(func(text string) {
			if text == "" {
				return
			}
			if empty {
				fmt.Fprintf(w, "%s:\n", name)
			}
			empty = false
			_, _ = w.WriteString(text) // an error comes again with Flush
		})
		if empty {
			fmt.Fprintf(w, "%s: []\n", name)
		}
	}
	section("nodes", func(yield func(string)) {
		for node := range snapshot.Nodes() {
			yield(d.nodes[node])
		}
	})
	section("services", func(yield func(string)) {
		for svc := range snapshot.Services() {
			yield(d.services[svc].service)
		}
	})
	section("slices", func(yield func(string)) {
		for svc := range snapshot.Services() {
			yield(d.services[svc].slices)
		}
	})
	return w.Flush()
}

// render makes the text of all that a snapshot holds, taking over what is unchanged, and forgets the rest.
func (d *writer) render(snapshot *store.Snapshot) error {
	services := make(map[*store.Service]serviceText, len(d.services))
	for svc := range snapshot.Services() {
		text, known := d.services[svc]
		if !known {
			var err error
			if text, err = renderService(svc); err != nil {
				return fmt.Errorf("service %s: %w", svc.Key(), err)
			}
		}
		services[svc] = text
	}
	nodes := make(map[*store.Node]string, len(d.nodes))
	for node := range snapshot.Nodes() {
		text, known := d.nodes[node]
		if !known {
			data, err := protojson.Marshal(node.Info())
			if err == nil {
				text, err = listItem(data)
			}
			if err != nil {
				return fmt.Errorf("node %s: %w", node.Name(), err)
			}
		}
		nodes[node] = text
	}
	d.services, d.nodes = services, nodes
	return nil
}

func renderService(svc *store.Service) (text serviceText, err error) {
	if info := svc.Info(); info != nil {
		info.Hash = 0
		data, err := protojson.Marshal(info)
		if err != nil {
			return text, err
		}
		if text.service, err = listItem(data); err != nil {
			return text, err
		}
	}
	var slices strings.Builder
	for _, slice := range svc.Slices() {
		data, err := marshalSlice(slice)
		if err != nil {
			return text, err
		}
		item, err := listItem(data)
		if err != nil {
			return text, err
		}
		slices.WriteString(item)
	}
	text.slices = slices.String()
	return text, nil
}

// sliceJSON is how a store.Slice is written.
type sliceJSON struct {
	Namespace string
	Name      string
	Service   string
	Endpoints []json.RawMessage // globalv1.EndpointInfo
}

func marshalSlice(slice *store.Slice) ([]byte, error) {
	out := sliceJSON{Namespace: slice.Namespace, Name: slice.Name, Service: slice.Service, Endpoints: []json.RawMessage{}}
	for _, info := range slice.Endpoints { // decoded for us: may be changed
		info.Hash, info.Namespace, info.SourceName, info.ServiceName = 0, "", "", ""
		data, err := protojson.Marshal(info)
		if err != nil {
			return nil, err
		}
		out.Endpoints = append(out.Endpoints, data)
	}
	return json.Marshal(out)
}

// listItem turns JSON into an item of a YAML list.
func listItem(data []byte) (string, error) {
	text, err := yaml.JSONToYAML(data)
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	var out strings.Builder
	for i, line := range lines {
		switch {
		case i == 0:
			out.WriteString("- ")
		case line != "": // an empty line within a text stays empty
			out.WriteString("  ")
		}
		out.WriteString(line)
		out.WriteByte('\n')
	}
	return out.String(), nil
}
