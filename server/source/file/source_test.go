// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"sigs.k8s.io/kpng/server/dump"
	"sigs.k8s.io/kpng/server/source/kube/translate"
	"sigs.k8s.io/kpng/server/store"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const deadline = 30 * time.Second

type running struct {
	*Source
	t     *testing.T
	st    *store.Store
	ended chan error
}

func run(t *testing.T, config *Config) *running {
	t.Helper()
	source, err := New(config)
	require.NoError(t, err)
	r := &running{Source: source, t: t, st: store.New(), ended: make(chan error, 1)}
	require.ErrorContains(t, r.Ready(), "not synced")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.ended <- source.Run(ctx, r.st) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func follow(t *testing.T, path string) *running {
	t.Helper()
	r := run(t, &Config{Input: path})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	_, err := r.st.WaitSynced(ctx)
	require.NoError(t, err)
	return r
}

// stateOf writes the store down: "namespace/name endpoints…" for each service, slices alone in brackets, nodes.
func stateOf(st *store.Store) string {
	var lines []string
	for svc := range st.Snapshot().Services() {
		line := svc.Key()
		if !svc.Exists() {
			line = "(" + line + ")"
		}
		for _, ep := range svc.Endpoints() {
			line += " " + strings.Split(ep.Key(), "-")[0]
		}
		lines = append(lines, line)
	}
	for node := range st.Snapshot().Nodes() {
		lines = append(lines, "node "+node.Name())
	}
	return strings.Join(lines, "; ")
}

func (r *running) requireState(want string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return stateOf(r.st) == want }, deadline, 2*time.Millisecond, "want %q", want)
}

func (r *running) requireStale(want string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.Ready() != nil && strings.Contains(r.Ready().Error(), want) },
		deadline, 2*time.Millisecond, "want %q", want)
	require.Empty(r.t, r.ended)
}

func (r *running) requireReady() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.Ready() == nil }, deadline, 2*time.Millisecond)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// replace is how editors and careful programs write.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+"~", text)
	require.NoError(t, os.Rename(path+"~", path))
}

func svc(name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: ns}\nspec: {ports: [{port: 80}]}\n", name)
}

func slice(name, service string, addresses ...string) string {
	text := fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n"+
		"metadata: {name: %s, namespace: ns, labels: {kubernetes.io/service-name: %s}}\nendpoints:\n", name, service)
	for _, address := range addresses {
		text += "- addresses: [" + address + "]\n"
	}
	return text
}

func TestFollowsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.yaml")
	write(t, path, svc("a")+slice("a-1", "a", "10.0.0.1")+"---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
	r := follow(t, path)
	require.Equal(t, "ns/a 10.0.0.1; node n1", stateOf(r.st))
	require.EqualValues(t, 1, r.st.Snapshot().Revision())
	r.requireReady()

	t.Log("written in place, and replaced")
	write(t, path, svc("a")+slice("a-1", "a", "10.0.0.1", "10.0.0.2"))
	r.requireState("ns/a 10.0.0.1 10.0.0.2")
	require.EqualValues(t, 2, r.st.Snapshot().Revision(), "an edit is one commit")
	replace(t, path, svc("a")+svc("b"))
	r.requireState("ns/a; ns/b")

	t.Log("broken, and mended")
	write(t, path, svc("a")+"  x: [\n")
	r.requireStale("stale: " + path + ": line ")
	require.Equal(t, "ns/a; ns/b", stateOf(r.st))
	replace(t, path, svc("b"))
	r.requireState("ns/b")
	r.requireReady()

	t.Log("removed, and back")
	require.NoError(t, os.Remove(path))
	r.requireStale("no such file")
	require.Equal(t, "ns/b", stateOf(r.st))
	write(t, path, svc("c"))
	r.requireState("ns/c")
	r.requireReady()
}

func TestWhatChangesNothingCommitsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.yaml")
	write(t, path, svc("a"))
	r := follow(t, path)
	write(t, path, "# a comment\n"+svc("a"))
	write(t, path, "broken: [")
	r.requireStale("line 1")
	replace(t, path, svc("a"))
	r.requireReady()
	require.EqualValues(t, 1, r.st.Snapshot().Revision())
}

func TestFollowsADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	require.NoError(t, os.Mkdir(dir, 0o700))
	r := follow(t, dir)
	require.Empty(t, stateOf(r.st))

	write(t, filepath.Join(dir, "a.yaml"), svc("a"))
	write(t, filepath.Join(dir, "b.json"), `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	write(t, filepath.Join(dir, "c.yml"), svc("c"))
	write(t, filepath.Join(dir, ".hidden.yaml"), svc("hidden"))
	write(t, filepath.Join(dir, "README.md"), "broken: [")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub.yaml"), 0o700))
	r.requireState("ns/a; ns/c; node n1")

	t.Log("one broken file: nothing of any changes")
	write(t, filepath.Join(dir, "a.yaml"), "broken: [")
	require.NoError(t, os.Remove(filepath.Join(dir, "c.yml")))
	r.requireStale("a.yaml: line 1")
	require.Equal(t, "ns/a; ns/c; node n1", stateOf(r.st))
	require.NoError(t, os.Remove(filepath.Join(dir, "a.yaml")))
	r.requireState("node n1")
	r.requireReady()

	t.Log("the directory goes and comes back")
	require.NoError(t, os.RemoveAll(dir))
	r.requireStale("no such file")
	require.Equal(t, "node n1", stateOf(r.st))
	require.NoError(t, os.Mkdir(dir, 0o700))
	write(t, filepath.Join(dir, "d.yaml"), svc("d"))
	r.requireState("ns/d")
	write(t, filepath.Join(dir, "d.yaml"), svc("e"))
	r.requireState("ns/e")
}

// A mounted ConfigMap: the files are links through ..data, which is swapped.
func TestFollowsAConfigMap(t *testing.T) {
	for _, input := range []string{"", "state.yaml"} {
		t.Run("input="+input, func(t *testing.T) {
			dir := t.TempDir()
			publish := func(version, text string) {
				require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
				write(t, filepath.Join(dir, version, "state.yaml"), text)
				require.NoError(t, os.Symlink(version, filepath.Join(dir, "..data_tmp")))
				require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
			}
			publish("..1", svc("a"))
			require.NoError(t, os.Symlink("..data/state.yaml", filepath.Join(dir, "state.yaml")))
			r := follow(t, filepath.Join(dir, input))
			require.Equal(t, "ns/a", stateOf(r.st))
			for i := 2; i < 5; i++ {
				publish(fmt.Sprintf("..%d", i), svc(fmt.Sprintf("s%d", i)))
				require.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", i-1))))
				r.requireState(fmt.Sprintf("ns/s%d", i))
			}
		})
	}
}

func TestFollowsALinkElsewhere(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "real.yaml")
	write(t, elsewhere, svc("a"))
	link := filepath.Join(t.TempDir(), "link.yaml")
	require.NoError(t, os.Symlink(elsewhere, link))
	r := follow(t, link)
	replace(t, elsewhere, svc("b"))
	r.requireState("ns/b")
}

// Without file events, the time stamps are looked at.
func TestPolling(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.yaml")
	write(t, path, svc("a"))
	w := &watcher{path: path}
	w.arm()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	replace(t, path, svc("b"))
	require.True(t, w.wait(ctx))
}

func TestBrokenAtStart(t *testing.T) {
	dir := t.TempDir()
	broken, good, fifo := filepath.Join(dir, "broken.yaml"), filepath.Join(dir, "good.yaml"), os.DevNull
	write(t, broken, svc("a")+"spec: 1\n")
	write(t, good, svc("a"))
	for path, want := range map[string]string{
		broken:                       broken + ": line 6: yaml: ",
		dir:                          broken + ": line 6: ",
		filepath.Join(dir, "none"):   "no such file",
		filepath.Join(good, "child"): "not a directory",
		fifo:                         "not a regular file",
	} {
		r := run(t, &Config{Input: path})
		select {
		case err := <-r.ended:
			require.ErrorContains(t, err, want)
		case <-time.After(deadline):
			t.Fatal("it goes on")
		}
		require.False(t, r.st.Snapshot().Synced())
	}
	_, err := New(&Config{Config: translate.Config{ServiceProxyName: "no label"}})
	require.ErrorContains(t, err, "--input")
	require.ErrorContains(t, err, "--service-proxy-name")
}

func TestSelection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.yaml")
	const label = "service.kubernetes.io/service-proxy-name"
	labelled := func(text, value string) string {
		text = strings.Replace(text, "namespace: ns, labels: {", "namespace: ns, labels: {"+label+": "+value+", ", 1)
		return strings.Replace(text, "namespace: ns}", "namespace: ns, labels: {"+label+": "+value+"}}", 1)
	}
	write(t, path, svc("plain")+slice("plain-1", "plain", "10.0.0.1")+
		labelled(svc("x"), "x")+slice("x-1", "x", "10.0.0.2")+labelled(slice("x-2", "x", "10.0.0.3"), "x")+
		labelled(svc("other"), "other")+labelled(slice("o-1", "other", "10.0.0.4"), "other")+
		"---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
	for proxy, want := range map[string]string{
		"":      "ns/plain 10.0.0.1; (ns/x) 10.0.0.2; node n1",
		"x":     "ns/x 10.0.0.2 10.0.0.3; node n1",
		"other": "ns/other 10.0.0.4; node n1",
		"none":  "node n1",
	} {
		r := run(t, &Config{Input: path, Config: translate.Config{ServiceProxyName: proxy}})
		r.requireState(want)
		require.True(t, r.st.Snapshot().Synced())
	}
}

func TestTheLastOfSeveralCounts(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "1.yaml"), slice("a-1", "a", "10.0.0.1"))
	write(t, filepath.Join(dir, "2.yaml"), slice("a-1", "a", "10.0.0.2"))
	follow(t, dir).requireState("(ns/a) 10.0.0.2")
}

// A dump is read back to the same state.
func TestReadsADump(t *testing.T) {
	dir := t.TempDir()
	manifests, dumped := filepath.Join(dir, "manifests.yaml"), filepath.Join(dir, "dump.yaml")
	write(t, manifests, svc("a")+slice("a-1", "a", "10.0.0.1", "10.0.0.2")+"---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
	first := follow(t, manifests)
	require.NoError(t, dump.Follow(t.Context(), first.st, dumped, true))
	second := follow(t, dumped)
	require.Equal(t, stateOf(first.st), stateOf(second.st))
	again := filepath.Join(dir, "again.yaml")
	require.NoError(t, dump.Follow(t.Context(), second.st, again, true))
	a, err := os.ReadFile(dumped)
	require.NoError(t, err)
	b, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, string(a), string(b))
}
