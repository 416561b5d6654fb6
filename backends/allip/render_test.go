// SPDX-License-Identifier: Apache-2.0

package allip

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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

// TestRender: each testdata/NAME.yaml is a service and its endpoints, NAME.golden what is asked for with each scope.
func TestRender(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, inputs)
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".yaml"), func(t *testing.T) {
			item := load(t, input)
			var b strings.Builder
			for _, config := range []*Config{{Scope: ScopeLocal}, {Scope: ScopeCluster}, {Scope: ScopeLocal, EgressSNAT: true}} {
				fmt.Fprintf(&b, "# scope %s, egress %t\n", config.Scope, config.EgressSNAT)
				s := render(item, config)
				if s == nil {
					b.WriteString("nothing\n")
					continue
				}
				require.NoError(t, s.Validate())
				describe(&b, s)
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

// load reads a Service and its Endpoints, as kpng-json --output=yaml prints an item.
func load(t *testing.T, file string) *fullstate.ServiceEndpoints {
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
		for _, target := range f.Pool.Targets {
			fmt.Fprintf(b, "  -> %s, local %t\n", target.IP, target.Local)
		}
	}
	for _, e := range s.Egress {
		fmt.Fprintf(b, "  %s leaves as %s\n", e.Source, e.IP)
	}
}

func TestPermittedAndServed(t *testing.T) {
	item := load(t, "testdata/several-pods.yaml")
	s := render(item, &Config{Scope: ScopeLocal, EgressSNAT: true})
	before := *s
	g := &guard{node: map[netip.Addr]bool{netip.MustParseAddr("10.0.0.55"): true}}
	out, refused := permitted(s, g)
	require.Equal(t, map[netip.Addr]Reason{netip.MustParseAddr("10.0.0.55"): ReasonNode}, refused)
	require.Equal(t, before, *s)
	require.Equal(t, []string{"10.0.0.56", "1000::55"}, addressesOf(out))
	require.NoError(t, out.Validate())
	for _, e := range out.Egress {
		require.NotEqual(t, "10.0.0.55", e.IP.String(), "no connection may leave with an address that is refused")
	}
	require.Len(t, out.Egress, 4)

	// Nothing on this node: the claims stay, no packet is taken.
	item.Endpoints = nil
	out, _ = permitted(render(item, &Config{Scope: ScopeLocal}), g)
	require.Len(t, out.Frontends, 2)
	require.Nil(t, served(out))

	// Nothing that may be served.
	out, refused = permitted(s, &guard{allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	require.Nil(t, out)
	require.Nil(t, served(nil))
	require.Equal(t, []Reason{ReasonNotAllowed, ReasonNotAllowed, ReasonNotAllowed}, slices.Collect(maps.Values(refused)))
}

func addressesOf(s *dataplane.Service) []string {
	var list []string
	for _, f := range s.Frontends {
		list = append(list, f.IP.String())
	}
	return list
}
