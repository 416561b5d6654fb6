// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/dataplane"
	"sigs.k8s.io/kpng/internal/localtest"
	"sigs.k8s.io/kpng/internal/netlab"
)

// TestMain lets the tests run a backend as a program: this test binary is it, when told so.
func TestMain(m *testing.M) {
	if os.Getenv("KPNG_TEST_PROGRAM") != "" {
		dataplane.Backend{Name: "kpng-test", Preferred: dataplane.IPTables, Render: render}.Main()
	}
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

// render asks for the first external IP, for all endpoints, as they come: also for what no kernel could do.
func render(item *dataplane.ServiceEndpoints) *dataplane.Service {
	f := dataplane.Frontend{Kind: dataplane.ExternalIP, IP: netip.MustParseAddr(item.Service.GetIPs().GetExternalIPs().First())}
	for _, ep := range item.Endpoints {
		for _, ip := range ep.GetIPs().All() {
			f.Pool.Targets = append(f.Pool.Targets, dataplane.Target{IP: netip.MustParseAddr(ip)})
		}
	}
	return &dataplane.Service{Frontends: []dataplane.Frontend{f}}
}

// TestFaultyService: a backend that asks for something impossible is told, and its other services are served.
func TestFaultyService(t *testing.T) {
	server := localtest.Start(t, localtest.Unix(filepath.Join(t.TempDir(), "kpng.sock")))
	server.Update(func(s localtest.State) {
		for path, ips := range map[string][2]string{"ns/good": {"192.0.2.1", "10.0.0.1"}, "ns/bad": {"192.0.2.2", "fd00::1"}} {
			svc := localtest.Service(path, "172.30.0.1", 80)
			svc.IPs.ExternalIPs = localv1.NewIPSet(ips[0])
			s.SetService(svc)
			s.SetEndpoint(path, "a", localtest.Endpoint(ips[1]))
		}
	})
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--dry-run", "--node-name=n1", "--api="+server.Target())
	cmd.Env = append(os.Environ(), "KPNG_TEST_PROGRAM=1")
	var stderr writes
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, string(stderr))
	require.Contains(t, string(out), "-d 192.0.2.1/32")
	require.Contains(t, string(out), `--comment "ns/good"`)
	require.NotContains(t, string(out), "192.0.2.2")
	require.Contains(t, string(stderr), `target fd00::1: want an address of the frontend's family`)
	require.Contains(t, string(stderr), `service="ns/bad"`)
}

type writes []byte

func (w *writes) Write(b []byte) (int, error) {
	*w = append(*w, b...)
	return len(b), nil
}

func TestFaultyOptions(t *testing.T) {
	for _, owner := range []string{"", "Upper", "much-too-long-for-it"} {
		w, err := dataplane.NewNFTables(dataplane.Options{Owner: owner})
		require.ErrorContains(t, err, "owner")
		require.Nil(t, w)
		w, err = dataplane.NewIPTables(dataplane.Options{Owner: owner}, dataplane.FlavorAuto)
		require.ErrorContains(t, err, "owner")
		require.Nil(t, w)
	}
	_, err := dataplane.NewIPTables(dataplane.Options{Owner: "test"}, "best")
	require.ErrorContains(t, err, `"best"`)
}

var vip = netip.MustParseAddr("192.0.2.1")

// to sends all of the address to a pod.
func to(pod *netlab.Host) *dataplane.Service {
	s := &dataplane.Service{Name: "default/web", Frontends: []dataplane.Frontend{{
		Kind: dataplane.ExternalIP, IP: vip,
		Pool: dataplane.Pool{Targets: []dataplane.Target{{IP: pod.Addr(false), Local: true}}},
	}}}
	s.Normalize()
	return s
}

// TestDocumentNamesEveryField: nobody who reads docs/dataplane.md misses a part of the model.
func TestDocumentNamesEveryField(t *testing.T) {
	document, err := os.ReadFile("../../docs/dataplane.md")
	require.NoError(t, err)
	for _, part := range []any{
		dataplane.Service{}, dataplane.Frontend{}, dataplane.Pool{}, dataplane.Target{}, dataplane.Egress{}, dataplane.Options{},
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(part)) {
			require.Regexp(t, `\b`+field.Name+`\b`, string(document), "%T", part)
		}
	}
}

// TestDocument: the loop in docs/dataplane.md is the one that is tested here.
func TestDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/dataplane.md")
	require.NoError(t, err)
	_, code, _ := strings.Cut(string(document), "```go\n")
	code, _, found := strings.Cut(code, "```\n")
	require.True(t, found)
	tested, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	require.Contains(t, string(tested), code)
}

// TestWriters is what docs/dataplane.md promises to a program with a loop of its own.
func TestWriters(t *testing.T) {
	require.NoError(t, netlab.Privileged(), "this test needs network namespaces: run it as root")
	flush := map[string][]string{"nftables": {"nft", "flush", "ruleset"}, "iptables": {"iptables", "-t", "nat", "-F"}}
	for name, newWriter := range map[string]func(dataplane.Options) (dataplane.Writer, error){
		"nftables": dataplane.NewNFTables,
		"iptables": func(o dataplane.Options) (dataplane.Writer, error) {
			return dataplane.NewIPTables(o, dataplane.FlavorAuto)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := netlab.ForTest(t).Cluster()
			node, pods := c.Nodes[0], c.Nodes[0].Pods
			for _, pod := range pods {
				pod.Serve(6000)
			}
			c.Client.Route(netip.PrefixFrom(vip, 32), node.Addr(false), "")
			// One client, one port: connection tracking remembers where it was sent.
			answers := func(within time.Duration) (string, error) {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				a, err := c.Client.Probe(ctx, netlab.Probe{
					Network: "udp", To: netip.AddrPortFrom(vip, 6000), From: netip.AddrPortFrom(netip.Addr{}, 5555),
				})
				return a.Host, err
			}
			requireAnswer := func(want string) {
				t.Helper()
				got, err := answers(20 * time.Second)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
			// In one call of Do: a writer stays in the namespace of the thread that called it first.
			ctx := t.Context()
			require.NoError(t, node.Do(func() error {
				w, err := newWriter(dataplane.Options{Owner: "test"})
				require.NoError(t, err)
				require.NoError(t, w.Replace(ctx, []*dataplane.Service{to(pods[0])}))
				requireAnswer(pods[0].Name)

				change := []dataplane.Change{{Old: to(pods[0]), New: to(pods[1])}}
				require.NoError(t, w.Apply(ctx, change))
				requireAnswer(pods[0].Name) // the old connection goes on, until it is cleaned away
				removed, err := dataplane.Cleaner{}.Clean(ctx, change)
				require.NoError(t, err)
				require.Positive(t, removed)
				requireAnswer(pods[1].Name)

				intact, err := w.Check(ctx)
				require.NoError(t, err)
				require.True(t, intact)
				require.NoError(t, node.Command(ctx, flush[name][0], flush[name][1:]...).Run())
				intact, err = w.Check(ctx)
				require.NoError(t, err)
				require.False(t, intact)
				require.NoError(t, w.Replace(ctx, []*dataplane.Service{to(pods[1])}))
				requireAnswer(pods[1].Name)

				changes := make(chan []dataplane.Change, 1)
				changes <- []dataplane.Change{{Old: to(pods[1]), New: to(pods[0])}}
				close(changes)
				require.NoError(t, keep(ctx, w, []*dataplane.Service{to(pods[1])}, changes))
				requireAnswer(pods[0].Name)

				require.NoError(t, w.Cleanup(ctx))
				require.NoError(t, w.Cleanup(ctx), "nothing there is not an error")
				return nil
			}))
		})
	}
}
