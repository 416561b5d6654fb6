// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/server/dump"
	"sigs.k8s.io/kpng/server/source/kube/translate"
	"sigs.k8s.io/kpng/server/store"
)

func summary(objs *objects) string {
	var out []string
	for _, svc := range objs.services {
		out = append(out, "svc "+svc.Namespace+"/"+svc.Name)
	}
	for _, slice := range objs.slices {
		out = append(out, "slice "+slice.Namespace+"/"+slice.Name)
	}
	for _, node := range objs.nodes {
		out = append(out, "node "+node.Name)
	}
	for range objs.dumps {
		out = append(out, "dump")
	}
	return strings.Join(out, ", ")
}

const (
	svcA   = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
	sliceA = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-1, namespace: ns}\naddressType: IPv4\n"
	nodeA  = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {capacity: {cpu: 2}}\n"
)

func TestDecodeFile(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"only comments", "# nothing\n\n---\n# here\n---\n", ""},
		{"one", svcA, "svc default/a"},
		{"several documents", "---\n" + svcA + "---\n" + sliceA + "--- # the last\n" + nodeA + "...\n", "svc default/a, slice ns/a-1, node node-a"},
		{"Windows lines and a byte order mark", "\ufeff" + strings.ReplaceAll(svcA+"---\n"+nodeA, "\n", "\r\n"), "svc default/a, node node-a"},
		{"a directive", "%YAML 1.1\n---\n" + svcA, "svc default/a"},
		{"content after the marker", "--- {apiVersion: v1, kind: Service, metadata: {name: a}}", "svc default/a"},
		{"a marker within a text is none", svcA + "spec:\n  externalName: |\n    ---\n    x\n", "svc default/a"},
		{"JSON", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"b"}}`, "svc b/a"},
		{"JSON after JSON", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"}} {"apiVersion":"v1","kind":"Node",` + "\n" + `"metadata":{"name":"y"}}`, "node x, node y"},
		{"a list", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: a}}\n- {apiVersion: v1, kind: Node, metadata: {name: x}}", "svc default/a, node x"},
		{"a typed list", "apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: a}}, {metadata: {name: b}}]", "svc default/a, svc default/b"},
		{"a typed list of slices", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems: [{metadata: {name: a}, addressType: IPv4}]", "slice default/a"},
		{"a dump", "apiVersion: kpng.sigs.k8s.io/v1\nkind: GlobalState", "dump"},
		{"other kinds", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\napiVersion: v1\nkind: Pod\nspec: 5\n---\n" + svcA, "svc default/a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objs, err := decodeFile([]byte(tc.in))
			require.NoError(t, err)
			require.Equal(t, tc.want, summary(objs))
		})
	}
}

func TestDecodeFaults(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"YAML syntax", svcA + "---\n# second\n" + nodeA + "x: [\n", "line 10: "},
		{"tab", svcA + "---\n\tx: 1\n", "line 5: yaml: found character that cannot start any token"},
		{"the same key twice", svcA + "kind: Service\n", `line 4: yaml: unmarshal errors: key "kind" already set in map`},
		{"JSON syntax", "{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"x\"}}\n{\"a\":\n]", "line 3: not JSON: "},
		{"a wrong type", svcA + "---\n" + svcA + "spec: {ports: [{port: eighty}]}\n", "line 5: document 2: Service a: json: cannot unmarshal string"},
		{"a number for a name", "apiVersion: v1\nkind: Service\nmetadata: {name: 5}\n", "line 1: document 1: Service : json: cannot unmarshal number"},
		{"no name", "apiVersion: v1\nkind: Node\n", "line 1: document 1: Node: metadata.name is missing"},
		{"not an object", "just text", "line 1: document 1: no apiVersion or no kind"},
		{"a list of objects", "- a\n- b\n", "line 1: document 1: no apiVersion or no kind"},
		{"no kind", "\n\nmetadata: {name: a}\n", "line 3: document 1: no apiVersion or no kind"},
		{"within a list", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service}]", "line 1: document 1: items[0]: Service: metadata.name is missing"},
		{"a list within a list", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List}]", "items[0]: a List within a List"},
		{"a broken dump", "apiVersion: kpng.sigs.k8s.io/v1\nkind: GlobalState\nservices: [{}]", "line 1: document 1: services[0]: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := decodeFile([]byte(tc.in))
			require.ErrorContains(t, err, tc.want)
			var at *lineError
			require.ErrorAs(t, err, &at)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestUnknownFieldsAreNoted(t *testing.T) {
	objs, err := decodeFile([]byte(svcA + "spec: {Ports: [], shiny: true}\n"))
	require.NoError(t, err)
	require.Len(t, objs.unknown, 2)
	require.Contains(t, strings.Join(objs.unknown, "\n"), `Service a: unknown field "spec.Ports"`)
	require.Contains(t, strings.Join(objs.unknown, "\n"), `unknown field "spec.shiny"`)
}

// Whatever is in a file: an error, or a state that can be dumped and read again.
func FuzzDecodeFile(f *testing.F) {
	for _, seed := range []string{
		svcA + "---\n" + sliceA + "---\n" + nodeA,
		`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"x"}}]}`,
		"apiVersion: kpng.sigs.k8s.io/v1\nkind: GlobalState\nnodes: [{Name: x}]",
		"%YAML 1.1\n--- {a: b}\n...\n",
		svcA + "spec: {clusterIP: None, externalIPs: [10.0.0.55], ports: [{port: 6000}]}",
		sliceA + "endpoints: [{addresses: [10.0.0.1]}]\nports: [{}]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		objs, err := decodeFile(data)
		if err != nil {
			var at *lineError
			require.True(t, errors.As(err, &at), "an error names its line: %v", err)
			require.Positive(t, at.line)
			require.NotContains(t, err.Error(), "\n")
			return
		}
		collected := newCollector(&translate.Config{})
		collected.add("f", objs)
		wanted := collected.state()
		st := store.New()
		st.Update(func(tx *store.Tx) { wanted.apply(tx, newState()) })
		path := filepath.Join(t.TempDir(), "dump.yaml")
		require.NoError(t, dump.Follow(t.Context(), st, path, true))
		dumped, err := os.ReadFile(path)
		require.NoError(t, err)
		_, err = decodeFile(dumped)
		require.NoError(t, err)
	})
}
