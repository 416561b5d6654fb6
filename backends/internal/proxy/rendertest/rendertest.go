// SPDX-License-Identifier: Apache-2.0

// Package rendertest tests what backends make of services, with golden files.
package rendertest

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

var update = flag.Bool("update", false, "write the golden files")

// Variant is a way to render.
type Variant struct {
	Name   string
	Render func(*fullstate.ServiceEndpoints) *dataplane.Service
}

// Golden renders each testdata/NAME.yaml, which is a service and its endpoints, in each variant; NAME.golden is what
// is to come of it.
func Golden(t *testing.T, variants ...Variant) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, inputs)
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".yaml"), func(t *testing.T) {
			item := Load(t, input)
			var b strings.Builder
			for _, v := range variants {
				fmt.Fprintf(&b, "# %s\n", v.Name)
				describe(&b, v.Render(item))
			}
			golden := strings.TrimSuffix(input, ".yaml") + ".golden"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), b.String())
		})
	}
}

// Load reads a Service and its Endpoints, as kpng-json --output=yaml prints an item.
func Load(t *testing.T, file string) *fullstate.ServiceEndpoints {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var raw struct {
		Service   map[string]any
		Endpoints []map[string]any
	}
	require.NoError(t, yaml.UnmarshalStrict(content, &raw))
	item := &fullstate.ServiceEndpoints{Service: &localv1.Service{}}
	into := func(value map[string]any, message proto.Message) {
		data, err := json.Marshal(value)
		require.NoError(t, err)
		require.NoError(t, protojson.Unmarshal(data, message))
	}
	into(raw.Service, item.Service)
	for _, e := range raw.Endpoints {
		ep := &localv1.Endpoint{}
		into(e, ep)
		item.Endpoints = append(item.Endpoints, ep)
	}
	return item
}

// describe writes a service for people to review.
func describe(b *strings.Builder, s *dataplane.Service) {
	if s == nil {
		b.WriteString("nothing\n")
		return
	}
	if err := s.Validate(); err != nil {
		fmt.Fprintf(b, "NOT VALID: %v\n", err)
	}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		fmt.Fprintf(b, "%s: %s %s", s.Name, f.Kind, f.Key())
		if f.Affinity != 0 {
			fmt.Fprintf(b, ", affinity %v", f.Affinity)
		}
		if f.Sources != nil {
			fmt.Fprintf(b, ", sources %v", f.Sources)
		}
		if f.Masquerade != dataplane.Never {
			fmt.Fprintf(b, ", masquerade %s", f.Masquerade)
		}
		b.WriteString("\n")
		describePool(b, "", &f.Pool)
		if f.Local != nil {
			describePool(b, "from outside ", f.Local)
		}
	}
	for _, e := range s.Egress {
		fmt.Fprintf(b, "  %s leaves as %s\n", e.Source, e.IP)
	}
}

func describePool(b *strings.Builder, from string, p *dataplane.Pool) {
	if len(p.Targets) == 0 {
		fmt.Fprintf(b, "  %s%s\n", from, p.Empty)
	}
	for _, t := range p.Targets {
		fmt.Fprintf(b, "  %s-> %s\n", from, target(t))
	}
	for _, t := range p.Draining {
		fmt.Fprintf(b, "  %sdraining %s\n", from, target(t))
	}
}

func target(t dataplane.Target) string {
	text := t.IP.String()
	if t.Port != 0 {
		text = fmt.Sprintf("[%s]:%d", t.IP, t.Port)
	}
	if t.Local {
		text += ", local"
	}
	if t.Terminating {
		text += ", terminating"
	}
	return text
}
