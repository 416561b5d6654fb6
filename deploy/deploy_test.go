// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the manifests: that they ask for nothing more than is needed, that the flags in them exist, that they
// build, that what they start runs with the rights they give, and that what the READMEs tell one to do works. Against a real API
// server they are tried in test/e2e.
package deploy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// object is what the tests look at in a manifest.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    any
	Data     map[string]string
	Spec     struct {
		Selector struct{ MatchLabels map[string]string }
		Template struct{ Spec podSpec }
	}
}

type podSpec struct {
	ServiceAccountName           string
	AutomountServiceAccountToken *bool
	SecurityContext              struct {
		RunAsNonRoot   bool
		SeccompProfile struct{ Type string }
	}
	HostNetwork bool
	DNSPolicy   string
	Containers  []container
	Volumes     []struct{ Name string }
}

type container struct {
	Name, Image    string
	Command, Args  []string
	LivenessProbe  *probe
	ReadinessProbe *probe
	Resources      struct{ Requests, Limits map[string]string }
	VolumeMounts   []struct {
		Name, MountPath string
		ReadOnly        bool
	}
	Env []struct {
		Name      string
		ValueFrom struct {
			ConfigMapKeyRef *struct{ Name, Key string }
			FieldRef        struct{ FieldPath string }
		}
	}

	SecurityContext struct {
		RunAsNonRoot             bool
		RunAsUser, RunAsGroup    int
		Privileged               bool
		AllowPrivilegeEscalation *bool
		ReadOnlyRootFilesystem   bool
		Capabilities             struct{ Add, Drop []string }
	}
}

type probe struct {
	HTTPGet struct {
		Host, Path string
		Port       any
	}
}

// build is what kubectl makes of a kustomization.
func build(t *testing.T, dir string) []object {
	t.Helper()
	kubectl := filepath.Join("..", ".cache", "bin", "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		if kubectl, err = exec.LookPath("kubectl"); err != nil {
			t.Skip("no kubectl: `make kubernetes` builds one")
		}
	}
	cmd := exec.Command(kubectl, "kustomize", dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	require.Empty(t, stderr.String(), "warnings")
	var objects []object
	for _, doc := range strings.Split(string(out), "\n---\n") {
		var o object
		require.NoError(t, yaml.Unmarshal([]byte(doc), &o))
		objects = append(objects, o)
	}
	return objects
}

func daemonSet(t *testing.T, objects []object) object {
	t.Helper()
	for _, o := range objects {
		if o.Kind == "DaemonSet" {
			return o
		}
	}
	t.Fatal("no DaemonSet")
	return object{}
}

func names(objects []object) (names []string) {
	for _, o := range objects {
		name := o.Metadata.Name
		if o.Kind == "ConfigMap" { // it ends in a hash of its content
			name = name[:strings.LastIndexByte(name, '-')]
		}
		names = append(names, o.Kind+" "+name)
	}
	return names
}

// withPods are the folders that make pods.
var withPods = []string{"node", "central", "allip", "nat/beside-kube-proxy", "nat/instead-of-kube-proxy"}

func TestBuilds(t *testing.T) {
	for dir, want := range map[string][]string{
		"rbac":  {"ServiceAccount kpng", "ClusterRole kpng", "ClusterRoleBinding kpng"},
		"node":  {"ServiceAccount kpng", "ClusterRole kpng", "ClusterRoleBinding kpng", "ConfigMap kpng", "DaemonSet kpng-node"},
		"allip": {"ServiceAccount kpng-allip", "ClusterRole kpng-allip", "ClusterRoleBinding kpng-allip", "ConfigMap kpng-allip", "DaemonSet kpng-node-allip"},

		"nat/beside-kube-proxy":     {"ServiceAccount kpng-nat", "ClusterRole kpng-nat", "ClusterRoleBinding kpng-nat", "ConfigMap kpng-nat", "DaemonSet kpng-node-nat"},
		"nat/instead-of-kube-proxy": {"ServiceAccount kpng-proxy", "ClusterRole kpng-proxy", "ClusterRoleBinding kpng-proxy", "ConfigMap kpng-proxy", "DaemonSet kpng-node-proxy"},

		"central": {"ServiceAccount kpng", "ServiceAccount kpng-node", "ClusterRole kpng", "ClusterRoleBinding kpng", "ConfigMap kpng", "Service kpng-central", "Deployment kpng-central", "PodDisruptionBudget kpng-central", "DaemonSet kpng-node"},
	} {
		t.Run(dir, func(t *testing.T) {
			require.ElementsMatch(t, want, names(build(t, dir)))
		})
	}
}

func TestLeastPrivilege(t *testing.T) {
	var role object
	data, err := os.ReadFile("rbac/clusterrole.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(data, &role))
	require.Equal(t, []any{
		map[string]any{"apiGroups": []any{""}, "resources": []any{"services", "nodes"}, "verbs": []any{"list", "watch"}},
		map[string]any{"apiGroups": []any{"discovery.k8s.io"}, "resources": []any{"endpointslices"}, "verbs": []any{"list", "watch"}},
	}, role.Rules)

	seen := 0
	for _, dir := range withPods {
		for _, o := range build(t, dir) {
			pod := o.Spec.Template.Spec
			for _, c := range pod.Containers {
				seen++
				what := dir + " " + o.Metadata.Name + " " + c.Name
				require.Equal(t, "RuntimeDefault", pod.SecurityContext.SeccompProfile.Type, what)
				sc := c.SecurityContext
				require.False(t, sc.Privileged, what)
				require.NotNil(t, sc.AllowPrivilegeEscalation, what)
				require.False(t, *sc.AllowPrivilegeEscalation, what)
				require.True(t, sc.ReadOnlyRootFilesystem, what)
				require.Equal(t, []string{"ALL"}, sc.Capabilities.Drop, what)
				require.Contains(t, c.Resources.Requests, "memory", what)
				require.Contains(t, c.Resources.Limits, "memory", what)
				require.Equal(t, "/healthz", c.LivenessProbe.HTTPGet.Path, what)
				require.Equal(t, "/readyz", c.ReadinessProbe.HTTPGet.Path, what)
				switch {
				case c.Name == "backend":
					require.Equal(t, []string{"NET_ADMIN", "NET_RAW"}, sc.Capabilities.Add, what)
					for _, m := range c.VolumeMounts {
						require.NotEqual(t, "token", m.Name, what)
					}
				case dir == "nat/instead-of-kube-proxy": // both in one
					require.Equal(t, []string{"NET_ADMIN", "NET_RAW"}, sc.Capabilities.Add, what)
				default:
					require.Empty(t, sc.Capabilities.Add, what)
					require.True(t, sc.RunAsNonRoot || pod.SecurityContext.RunAsNonRoot, what)
				}
			}
			if o.Kind == "DaemonSet" {
				require.NotNil(t, pod.AutomountServiceAccountToken)
				require.False(t, *pod.AutomountServiceAccountToken)
				for _, v := range pod.Volumes {
					require.False(t, dir == "central" && v.Name == "token", "the nodes need no token")
				}
			}
		}
	}
	require.Equal(t, 10, seen, "containers")
}

// What nobody can know but the cluster's admin is in no ConfigMap, so that a container without it does not start.
func TestMustBeSet(t *testing.T) {
	for dir, want := range map[string][]string{
		"node":                      nil,
		"allip":                     {"allow-cidrs"},
		"nat/beside-kube-proxy":     {"cluster-cidr"},
		"nat/instead-of-kube-proxy": {"cluster-cidr", "apiserver-host", "apiserver-port"},
	} {
		data, missing := map[string]string{}, []string(nil)
		objects := build(t, dir)
		for _, o := range objects {
			if o.Kind == "ConfigMap" {
				data = o.Data
			}
		}
		for _, c := range daemonSet(t, objects).Spec.Template.Spec.Containers {
			for _, e := range c.Env {
				if from := e.ValueFrom.ConfigMapKeyRef; from != nil {
					if _, ok := data[from.Key]; !ok {
						missing = append(missing, from.Key)
					}
				}
			}
		}
		require.Equal(t, want, missing, dir)
	}
}

// Pods of two of them may run on one node, which has one network: they share no port, and no Deployment or DaemonSet selects the other's pods.
func TestSideBySide(t *testing.T) {
	ports, selectors := map[string]string{}, map[string]string{}
	for _, dir := range []string{"node", "allip", "nat/beside-kube-proxy", "nat/instead-of-kube-proxy"} {
		o := daemonSet(t, build(t, dir))
		component := o.Spec.Selector.MatchLabels["app.kubernetes.io/component"]
		require.Empty(t, selectors[component], dir)
		selectors[component] = dir
		for _, c := range o.Spec.Template.Spec.Containers {
			port := fmt.Sprint(c.LivenessProbe.HTTPGet.Port)
			require.Empty(t, ports[port], dir)
			ports[port] = dir
			require.Equal(t, port, fmt.Sprint(c.ReadinessProbe.HTTPGet.Port), dir)
			require.Contains(t, c.Args, "--metrics-listen=127.0.0.1:"+port, dir)
		}
	}
}

// Every flag in the manifests is one that the binary knows.
func TestFlagsExist(t *testing.T) {
	bin := t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin+"/", "../cmd/...").CombinedOutput()
	require.NoError(t, err, "%s", out)
	seen := 0
	for _, dir := range withPods {
		for _, o := range build(t, dir) {
			for _, c := range o.Spec.Template.Spec.Containers {
				seen++
				args := append(c.Args[:len(c.Args):len(c.Args)], "--help")
				out, err := exec.Command(filepath.Join(bin, c.Command[0]), args...).CombinedOutput()
				require.NoError(t, err, "%s %s %v: %s", dir, c.Name, c.Args, out)
				args[len(args)-1] = "--no-such-flag"
				out, err = exec.Command(filepath.Join(bin, c.Command[0]), args...).CombinedOutput()
				require.Error(t, err, "%s", out)
				require.Contains(t, string(out), "no-such-flag")
			}
		}
	}
	require.Equal(t, 10, seen, "containers")
}

// connected is a pair of buffered connections: over a net.Pipe, two sides that both send an alert would wait for ever.
func connected(t *testing.T) (a, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "tls.sock"))
	require.NoError(t, err)
	defer ln.Close()
	a, err = net.Dial("unix", ln.Addr().String())
	require.NoError(t, err)
	b, err = ln.Accept()
	require.NoError(t, err)
	return a, b
}

// The commands in central/README.md make certificates that a server and a client accept from each other.
func TestCertificatesOfREADME(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl")
	}
	readme, err := os.ReadFile("central/README.md")
	require.NoError(t, err)
	_, script, found := strings.Cut(string(readme), "With openssl:\n")
	require.True(t, found)
	script, _, found = strings.Cut(script, "\n    for who in central node; do\n      kubectl")
	require.True(t, found)
	cmd := exec.Command("sh", "-e", "-c", script)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	file := func(name string) string { return filepath.Join(cmd.Dir, name) }
	pem, err := os.ReadFile(file("ca.crt"))
	require.NoError(t, err)
	ca := x509.NewCertPool()
	require.True(t, ca.AppendCertsFromPEM(pem))
	pair := func(who string) []tls.Certificate {
		cert, err := tls.LoadX509KeyPair(file(who+".crt"), file(who+".key"))
		require.NoError(t, err)
		return []tls.Certificate{cert}
	}
	handshake := func(server, client, name string) error {
		a, b := connected(t)
		served := make(chan error, 1)
		go func() {
			served <- tls.Server(a, &tls.Config{Certificates: pair(server), ClientCAs: ca, ClientAuth: tls.RequireAndVerifyClientCert, MaxVersion: tls.VersionTLS12}).Handshake()
			_ = a.Close()
		}()
		// TLS 1.2, where the client's handshake ends only when the server has accepted its certificate.
		err := tls.Client(b, &tls.Config{Certificates: pair(client), RootCAs: ca, ServerName: name, MaxVersion: tls.VersionTLS12}).Handshake()
		_ = b.Close()
		if s := <-served; err == nil {
			err = s
		}
		return err
	}
	const name = "kpng-central.kube-system.svc"
	require.NoError(t, handshake("central", "node", name))
	require.Error(t, handshake("central", "node", "other.kube-system.svc"))
	require.Error(t, handshake("node", "node", name), "a node's certificate must not do for a server")
	require.Error(t, handshake("central", "central", name), "nor the server's for a client")

	manifest, err := os.ReadFile("central/node-from-central.yaml")
	require.NoError(t, err)
	require.Contains(t, string(manifest), "--api="+name+":12090")
}
