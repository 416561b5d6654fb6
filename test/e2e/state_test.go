// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// item is a line of kpng-json as its documentation describes it, written down here again on purpose: programs in
// other languages read these keys.
type item struct {
	Service struct {
		Namespace, Name, Type string
		IPs                   struct {
			ClusterIPs, ExternalIPs, LoadBalancerIPs ipSet
			Headless                                 bool
		}
		Ports []struct {
			Name                       string
			Protocol                   int
			Port, NodePort, TargetPort int32
			TargetPortName             string
		}
	}
	Endpoints []struct {
		Hostname string
		IPs      ipSet
		Local    bool
		Scopes   struct{ Internal, External bool }
	}
}

type ipSet struct{ V4, V6 []string }

func (s ipSet) all() []string { return append(slices.Clone(s.V4), s.V6...) }

// String is an item in short, a line for the service and one for each endpoint:
//
//	NAMESPACE/NAME clusterIPs=1+1 external=... headless NAME:PORT/PROTOCOL>TARGET
//	- ADDRESS here
func (it item) String() string {
	svc := it.Service
	line := []string{svc.Namespace + "/" + svc.Name}
	if n := svc.IPs.ClusterIPs; len(n.V4)+len(n.V6) > 0 {
		line = append(line, fmt.Sprintf("clusterIPs=%d+%d", len(n.V4), len(n.V6)))
	}
	if ips := svc.IPs.ExternalIPs.all(); len(ips) > 0 {
		line = append(line, "external="+strings.Join(ips, ","))
	}
	if svc.IPs.Headless {
		line = append(line, "headless")
	}
	for _, p := range svc.Ports {
		protocol := map[int]string{1: "TCP", 2: "UDP", 3: "SCTP"}[p.Protocol]
		target := fmt.Sprint(p.TargetPort)
		if p.TargetPortName != "" {
			target = p.TargetPortName
		}
		name := p.Name
		if name != "" {
			name += ":"
		}
		line = append(line, fmt.Sprintf("%s%d/%s>%s", name, p.Port, protocol, target))
	}
	var endpoints []string
	for _, ep := range it.Endpoints {
		text := "- " + strings.Join(ep.IPs.all(), ",")
		if ep.Local {
			text += " here"
		}
		endpoints = append(endpoints, text)
	}
	slices.Sort(endpoints)
	return strings.Join(append([]string{strings.Join(line, " ")}, endpoints...), "\n")
}

// parseItems reads what kpng-json wrote, pretty-printed or not.
func parseItems(text string) ([]item, error) {
	var items []item
	dec := json.NewDecoder(strings.NewReader(text))
	for {
		var it item
		err := dec.Decode(&it)
		if errors.Is(err, io.EOF) {
			return items, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%w in %q", err, text)
		}
		items = append(items, it)
	}
}

func summary(items []item) string {
	var lines []string
	for _, it := range items {
		lines = append(lines, it.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// state is what a node gets now, in short. It fails when there is no first state within the time.
func state(t *testing.T, api, node string) (string, error) {
	t.Helper()
	text, err := once(t, api, node)
	if err != nil {
		return "", err
	}
	items, err := parseItems(text)
	return summary(items), err
}

// once is what `kpng-json --once` writes.
func once(t *testing.T, api, node string) (string, error) {
	t.Helper()
	r := runToEnd(t, "kpng-json", "--once", "--timeout=20s", "--api", api, "--node-name", node)
	if r.Code != 0 {
		return "", fmt.Errorf("kpng-json --once: exit status %d: %s", r.Code, r.Stderr)
	}
	return r.Stdout, nil
}

// wantState waits until a node gets that state; names of the scene are expanded.
func (s *scene) wantState(api, node, want string) {
	s.t.Helper()
	want = dedent(s.expand(want))
	var got string
	eventually(s.t, func() (err error) {
		got, err = state(s.t, api, node)
		if err == nil && got != want {
			err = fmt.Errorf("node %s: state differs (-want +got):\n%s", node, cmp.Diff(want, got))
		}
		return err
	})
}

// dedent takes the indentation away that a text has in Go source.
func dedent(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func TestStateInShort(t *testing.T) {
	items, err := parseItems(`{"Service":{"Namespace":"default","Name":"kpng-example","Type":"ClusterIP","IPs":{"ClusterIPs":{},` +
		`"ExternalIPs":{"V4":["10.0.0.55"],"V6":["1000::55"]},"Headless":true},"Ports":[{"Protocol":1,"Port":6000,"TargetPort":6000}]},` +
		`"Endpoints":[{"IPs":{"V6":["1100::202"]},"Local":true},{"IPs":{"V4":["11.0.1.2"]}}]}`)
	require.NoError(t, err)
	require.Equal(t, dedent(`
		default/kpng-example external=10.0.0.55,1000::55 headless 6000/TCP>6000
		- 11.0.1.2
		- 1100::202 here`), summary(items))
}
