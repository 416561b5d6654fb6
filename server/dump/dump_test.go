// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 20 * time.Second

func service(name string) *globalv1.ServiceInfo {
	return &globalv1.ServiceInfo{
		PublishNotReadyAddresses: true,
		Service: &localv1.Service{
			Namespace: "ns", Name: name, Type: "LoadBalancer", MapIP: true,
			IPs: &localv1.ServiceIPs{
				ClusterIPs: &localv1.IPSet{}, ExternalIPs: &localv1.IPSet{V4: []string{"10.0.0.55"}, V6: []string{"1000::55"}},
				Headless: true, LoadBalancerIPs: &localv1.IPSet{V4: []string{"192.0.2.1"}},
			},
			Ports: []*localv1.PortMapping{
				{Protocol: localv1.Protocol_TCP, Port: 80, TargetPort: 8080, NodePort: 30080},
				{Name: "dns", Protocol: localv1.Protocol_UDP, Port: 53, TargetPortName: "yes"},
			},
			Annotations:     map[string]string{"text": "first\n\n- third: \"line\"\n", "yes": "no"},
			IPFilters:       []*localv1.IPFilter{{TargetIPs: &localv1.IPSet{V4: []string{"192.0.2.1"}}, SourceRanges: []string{"10.0.0.0/8"}}},
			SessionAffinity: &localv1.Service_ClientIP{ClientIP: &localv1.ClientIPAffinity{TimeoutSeconds: 60}},
		},
	}
}

func endpoint(address string) *globalv1.EndpointInfo {
	return &globalv1.EndpointInfo{
		Endpoint: &localv1.Endpoint{
			Hostname: "h", IPs: &localv1.IPSet{V4: []string{address}}, PortOverrides: []*localv1.PortName{{Name: "dns", Port: 5353}},
		},
		Conditions: &globalv1.EndpointConditions{Serving: true, Terminating: true},
		PodName:    "pod", Topology: &globalv1.TopologyInfo{Node: "n1", Zone: "z"},
		Hints: &globalv1.TopologyHints{Zones: []string{"z"}, Nodes: []string{"n1"}},
	}
}

func filled() *store.Store {
	st := store.New()
	st.Update(func(tx *store.Tx) {
		tx.SetSynced()
		tx.SetService(service("a"))
		tx.SetSlice(&store.Slice{Namespace: "ns", Name: "a-1", Service: "a", Endpoints: []*globalv1.EndpointInfo{endpoint("10.1.0.1"), endpoint("10.1.0.2")}})
		tx.SetSlice(&store.Slice{Namespace: "ns", Name: "a-2", Service: "a"})
		tx.SetSlice(&store.Slice{Namespace: "ns", Name: "later-1", Service: "later", Endpoints: []*globalv1.EndpointInfo{endpoint("10.1.0.3")}})
		tx.SetNode(&globalv1.Node{Name: "n1", Labels: map[string]string{"l": "v"}, Topology: &globalv1.TopologyInfo{Node: "n1", Zone: "z"}})
	})
	return st
}

func load(state *State) *store.Store {
	st := store.New()
	st.Update(func(tx *store.Tx) {
		tx.SetSynced()
		for _, info := range state.Services {
			tx.SetService(info)
		}
		for _, slice := range state.Slices {
			tx.SetSlice(slice)
		}
		for _, node := range state.Nodes {
			tx.SetNode(node)
		}
	})
	return st
}

func text(t *testing.T, st *store.Store) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, Write(&out, st.Snapshot()))
	return out.String()
}

func TestWriteGolden(t *testing.T) {
	for name, st := range map[string]*store.Store{"filled": filled(), "empty": store.New()} {
		golden := filepath.Join("testdata", name+".yaml")
		got := text(t, st)
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, string(want), got)

		state, err := Read([]byte(got))
		require.NoError(t, err)
		require.Empty(t, state.Unknown)
		require.Equal(t, got, text(t, load(state)), "what is read back is the same")
	}
}

func TestRead(t *testing.T) {
	const head = "apiVersion: kpng.sigs.k8s.io/v1\nkind: GlobalState\n"
	for _, tc := range []struct{ name, in, want string }{
		{"not YAML", "a: [", "yaml: "},
		{"something else", "apiVersion: v1\nkind: Service", `apiVersion "v1", kind "Service": a dump has`},
		{"no name", head + "services: [{Service: {Namespace: a}}]", `services[0]: Service.Name "" must be there`},
		{"empty service", head + "services: [{}, null]", `services[0]: Service.Namespace`},
		{"a slash", head + "nodes: [{Name: a/b}]", `nodes[0]: Name "a/b"`},
		{"a number too much", head + "services: [{Service: {Namespace: a, Name: 5}}]", `services[0]: invalid value for string field Name: 5`},
		{"an address that is none", head + "services: [{Service: {Namespace: a, Name: b, IPs: {ClusterIPs: {V4: [x]}}}}]",
			`services[0]: a/b: IPs.ClusterIPs.V4: "x" is not an IPv4 address`},
		{"of the other family", head + "services: [{Service: {Namespace: a, Name: b, IPs: {ExternalIPs: {V6: [10.0.0.1]}}}}]",
			`IPs.ExternalIPs.V6: "10.0.0.1" is not an IPv6 address`},
		{"a port", head + "services: [{Service: {Namespace: a, Name: b, Ports: [{Port: 0, Protocol: TCP}]}}]", "Ports[0].Port 0 is not in 1..65535"},
		{"a protocol", head + "services: [{Service: {Namespace: a, Name: b, Ports: [{Port: 1}]}}]", "Ports[0].Protocol must be"},
		{"a range", head + "services: [{Service: {Namespace: a, Name: b, IPFilters: [{SourceRanges: [x]}]}}]", `"x" is not a CIDR`},
		{"a slice of no service", head + "slices: [{Namespace: a, Name: b-1}]", `slices[0]: Service ""`},
		{"an endpoint without address", head + "slices: [{Namespace: a, Name: b-1, Service: b, Endpoints: [{}]}]",
			"slices[0]: a/b-1: Endpoints[0]: Endpoint.IPs has no address"},
		{"twice the same key", head + "nodes: []\nnodes: []", "already set in map"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			state, err := Read([]byte(tc.in))
			require.ErrorContains(t, err, tc.want)
			require.Nil(t, state)
		})
	}
	t.Run("fields of a newer kpng are noted", func(t *testing.T) {
		state, err := Read([]byte(head + "services: [{Service: {Namespace: a, Name: b, Shiny: 1}}]\nnodes: [{Name: n1, Kernel: {}}]"))
		require.NoError(t, err)
		require.Len(t, state.Services, 1)
		require.Equal(t, "b", state.Services[0].Service.Name)
		require.NotNil(t, state.Services[0].Service.IPs.ClusterIPs)
		require.Len(t, state.Unknown, 2)
		require.Contains(t, state.Unknown[1], "Shiny")
	})
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"filled", "empty"} {
		seed, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
		require.NoError(f, err)
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		state, err := Read(data)
		if err != nil {
			return
		}
		once := text(t, load(state))
		again, err := Read([]byte(once))
		require.NoError(t, err, "what is written can be read: %s", once)
		require.Equal(t, once, text(t, load(again)))
	})
}

func TestWriteFile(t *testing.T) {
	say := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "state.yaml")
	require.NoError(t, WriteFile(path, say("one")))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())

	require.EqualError(t, WriteFile(path, func(io.Writer) error { return errors.New("disk full") }), "disk full")
	requireFile(t, path, "one")
	requireOnly(t, dir, "state.yaml")

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, WriteFile(link, say("two")))
	requireFile(t, path, "two")
	target, err := os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, path, target, "the link stays a link")

	require.ErrorContains(t, WriteFile(dir, say("")), "is a directory")
	require.ErrorIs(t, WriteFile(filepath.Join(dir, "none", "x"), say("")), os.ErrNotExist)
	require.NoError(t, WriteFile(os.DevNull, say("gone")))
	info, err = os.Stat(os.DevNull)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeDevice, "a device is written to, not replaced")
}

func requireFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func requireOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	got := []string{}
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	require.Equal(t, names, got)
}

func follow(t *testing.T, st *store.Store, path string, once bool) chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() { defer close(done); ended <- Follow(ctx, st, path, once) }()
	t.Cleanup(func() { cancel(); <-done })
	return ended
}

func eventually(t *testing.T, path string, contains string) {
	t.Helper()
	require.Eventually(t, func() bool {
		got, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		_, err = Read(got)
		require.NoError(t, err, "a reader never sees half a file")
		return strings.Contains(string(got), contains)
	}, deadline, time.Millisecond)
}

func TestFollow(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.yaml")
	left := filepath.Join(dir, ".state.yaml.123.kpng-tmp")
	require.NoError(t, os.WriteFile(left, []byte("half"), 0o600))
	st := store.New()
	ended := follow(t, st, path, false)
	st.Update(func(tx *store.Tx) { tx.SetService(service("early")) })
	time.Sleep(20 * time.Millisecond)
	require.NoFileExists(t, path, "nothing is written before the state is whole")
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	eventually(t, path, "Name: early")
	for i := range 20 {
		st.Update(func(tx *store.Tx) { tx.SetService(service(fmt.Sprintf("s%02d", i))) })
	}
	eventually(t, path, "Name: s19")
	st.Update(func(tx *store.Tx) { tx.DeleteService("ns", "s00"); tx.SetNode(&globalv1.Node{Name: "last"}) })
	eventually(t, path, "Name: last")
	require.Equal(t, text(t, st), readFile(t, path), "text taken over from before is the text of now")
	requireOnly(t, dir, "state.yaml")
	require.Empty(t, ended)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(got)
}

func TestFollowOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.yaml")
	require.NoError(t, <-follow(t, filled(), path, true))
	require.Equal(t, text(t, filled()), readFile(t, path))
}

func TestFollowFailsAtFirstAndRetriesLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	path := filepath.Join(dir, "state.yaml")
	st := filled()
	require.ErrorIs(t, <-follow(t, st, path, false), os.ErrNotExist)

	require.NoError(t, os.Mkdir(dir, 0o700))
	ended := follow(t, st, path, false)
	eventually(t, path, "Name: a")
	require.NoError(t, os.Rename(dir, dir+"-away"))
	st.Update(func(tx *store.Tx) { tx.SetService(service("b")) })
	time.Sleep(50 * time.Millisecond)
	require.NoFileExists(t, path)
	require.NotContains(t, readFile(t, filepath.Join(dir+"-away", "state.yaml")), "Name: b")
	require.NoError(t, os.Rename(dir+"-away", dir))
	eventually(t, path, "Name: b")
	require.Empty(t, ended)
}
