// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/test/e2e/cluster"
	"sigs.k8s.io/kpng/test/e2e/proc"
)

// patience is how long something may take that should take less than a second, on a machine that does other things too.
const patience = 60 * time.Second

// errNotYet makes eventually ask again.
var errNotYet = errors.New("not what the test waits for")

const (
	sigstop = syscall.SIGSTOP
	sigcont = syscall.SIGCONT
	sigterm = syscall.SIGTERM
)

// scene is what one test plays in: a namespace of the cluster and a name that selects its Services.
type scene struct {
	t         *testing.T
	namespace string
	proxyName string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	require.NoError(t, k8s.AddNamespace(t.Context(), name))
	return &scene{t: t, namespace: name, proxyName: name + ".test"}
}

// expand fills in the names of the scene: {ns} {proxy} {nodeA} {nodeB} {zoneA} {zoneB}.
func (s *scene) expand(text string) string {
	return strings.NewReplacer("{ns}", s.namespace, "{proxy}", s.proxyName,
		"{nodeA}", nodeA, "{nodeB}", nodeB, "{zoneA}", zoneA, "{zoneB}", zoneB).Replace(text)
}

// apply applies manifests, without a namespace, in the scene's namespace.
func (s *scene) apply(manifests string) {
	s.t.Helper()
	s.kubectlIn(s.expand(manifests), "apply", "-f", "-")
}

func (s *scene) kubectl(args ...string) string {
	s.t.Helper()
	return s.kubectlIn("", args...)
}

func (s *scene) kubectlIn(stdin string, args ...string) string {
	s.t.Helper()
	args = append([]string{"--kubeconfig", k8s.Kubeconfig}, args...)
	if s.namespace != "" {
		args = append([]string{"--namespace", s.namespace}, args...)
	}
	cmd := exec.CommandContext(s.t.Context(), tool("kubectl"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "kubectl %s: %s\n%s", args, out, stdin)
	return string(out)
}

// pod makes a ready pod labelled app=NAME, where name is NAME or NAME-SUFFIX.
func (s *scene) pod(name, node string, ips ...string) {
	s.t.Helper()
	require.NoError(s.t, k8s.AddPod(s.t.Context(), s.podSpec(name, node, ips...)))
}

func (s *scene) podSpec(name, node string, ips ...string) cluster.Pod {
	app, _, _ := strings.Cut(name, "-")
	return cluster.Pod{Namespace: s.namespace, Name: name, Node: node, Labels: map[string]string{"app": app}, IPs: ips}
}

// slices waits until the EndpointSlice controller has made n endpoints for a service.
func (s *scene) slices(service string, n int) {
	s.t.Helper()
	eventually(s.t, func() error {
		var list struct {
			Items []struct{ Endpoints []struct{} }
		}
		path := cluster.Path("endpointslices", s.namespace, "") + "?labelSelector=kubernetes.io/service-name=" + service
		if err := k8s.Do(s.t.Context(), http.MethodGet, strings.Replace(path, "/?", "?", 1), nil, &list); err != nil {
			return err
		}
		total := 0
		for _, slice := range list.Items {
			total += len(slice.Endpoints)
		}
		if total != n {
			return fmt.Errorf("service %s has %d endpoints in its slices, want %d", service, total, n)
		}
		return nil
	})
}

// eventually polls until check is content.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", patience, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// tool is a pinned tool of .cache/bin.
func tool(name string) string { return filepath.Join(repo, ".cache", "bin", name) }

// program is a binary of ours, from bin/ or from where KPNG_BIN says (see `make test-e2e-race`).
func program(name string) string {
	if dir := os.Getenv("KPNG_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	return filepath.Join(repo, "bin", name)
}

// start starts a program, ends it with the test, and shows what it wrote if the test failed.
func start(t *testing.T, spec proc.Spec) *proc.Process {
	t.Helper()
	p, err := proc.Start(spec)
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("--- %s %v\n--- stdout:\n%s\n--- stderr:\n%s", spec.Path, spec.Args, tail(p.Stdout.String()), tail(p.Stderr.String()))
		}
	})
	return p
}

func tail(text string) string { return text[max(0, len(text)-6000):] }

// result is how a program ended.
type result struct {
	Code           int
	Stdout, Stderr string
}

// runToEnd runs a program of ours to its end.
func runToEnd(t *testing.T, name string, args ...string) result {
	t.Helper()
	p, err := proc.Start(proc.Spec{Path: program(name), Args: args, Env: []string{"KUBECONFIG="}})
	require.NoError(t, err)
	defer p.Kill()
	code, err := p.Wait(patience)
	require.NoError(t, err, "%s %v\n%s%s", name, args, p.Stdout, p.Stderr)
	return result{code, p.Stdout.String(), p.Stderr.String()}
}

// server is a running kpng.
type server struct {
	*proc.Process
	API     string // for --api
	metrics string
	spec    proc.Spec
}

// kpng starts `kpng SOURCE... to-api` on a unix socket. More flags may follow to-api in args.
func kpng(t *testing.T, args ...string) *server {
	t.Helper()
	return kpngTo(t, args, "to-api")
}

func kpngTo(t *testing.T, source []string, sink ...string) *server {
	t.Helper()
	socket := filepath.Join(shortDir(t), "kpng.sock")
	s := &server{API: "unix://" + socket, metrics: freeAddress(t)}
	s.spec = proc.Spec{
		Path: program("kpng"),
		Args: append(append(append([]string{}, source...), sink...), "--listen", "unix://"+socket, "--metrics-listen", s.metrics),
		Env:  []string{"KUBECONFIG="},
	}
	s.Process = start(t, s.spec)
	return s
}

// kube starts kpng on the API server, for the scene's services.
func (s *scene) kube(more ...string) *server {
	s.t.Helper()
	return kpng(s.t, append([]string{"kube", "--kubeconfig", k8s.Kubeconfig, "--service-proxy-name", s.proxyName}, more...)...)
}

// restart kills kpng, as a crash would, and starts it again with the same arguments.
func (s *server) restart(t *testing.T) {
	t.Helper()
	s.Kill()
	s.Process = start(t, s.spec)
}

// ready asks /readyz: nil, or why not.
func (s *server) ready(ctx context.Context) error {
	body, code, err := s.get(ctx, "/readyz")
	if err == nil && code != http.StatusOK {
		err = errors.New(strings.TrimSpace(body))
	}
	return err
}

func (s *server) get(ctx context.Context, path string) (string, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metrics+path, nil)
	if err != nil {
		return "", 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), resp.StatusCode, err
}

// shortDir is a folder whose path leaves room in the 108 bytes of a socket's address.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// freeAddress is a loopback address that is free now; no one else takes ports in our network namespace.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// readFile reads a file of the repository.
func readFile(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{repo}, path...)...))
	require.NoError(t, err)
	return string(text)
}
