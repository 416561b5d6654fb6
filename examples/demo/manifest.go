// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// manifestFiles are copied for each run, as the demo edits one of them.
var manifestFiles = []string{"nodes.yaml", "service.yaml", slicesFile}

const slicesFile = "endpointslices.yaml"

func copyManifests(from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	for _, name := range manifestFiles {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// withoutNode is a file of EndpointSlices less the endpoints of a node, and their addresses.
func withoutNode(manifest []byte, node string) (edited []byte, removed []string, err error) {
	var docs [][]byte
	for i, doc := range bytes.Split(manifest, []byte("\n---\n")) {
		var slice map[string]any
		if err := yaml.Unmarshal(doc, &slice); err != nil {
			return nil, nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		endpoints, _ := slice["endpoints"].([]any)
		keep := []any{}
		for _, e := range endpoints {
			if ep, _ := e.(map[string]any); ep["nodeName"] == node {
				addrs, _ := ep["addresses"].([]any)
				for _, a := range addrs {
					removed = append(removed, fmt.Sprint(a))
				}
				continue
			}
			keep = append(keep, e)
		}
		slice["endpoints"] = keep
		out, err := yaml.Marshal(slice)
		if err != nil {
			return nil, nil, err
		}
		docs = append(docs, out)
	}
	return bytes.Join(docs, []byte("---\n")), removed, nil
}

// replaceFile changes a file at once, as editors and `kubectl` plugins do: a reader never sees half of it.
func replaceFile(path string, data []byte) error {
	// Hidden, so that nobody takes it for a manifest.
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
