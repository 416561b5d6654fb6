// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/test/e2e/proc"
)

// variety makes services of many kinds in the scene.
func (s *scene) variety() {
	s.t.Helper()
	s.webPods()
	s.pod("dual-a", nodeA, "10.1.0.5", "fd01::5")
	s.pod("dual-b", nodeB, "10.2.0.5", "fd02::5")
	s.apply(web + "\n---\n" + byHand + "\n---\n" + byHandSlice + `
---
apiVersion: v1
kind: Service
metadata:
  name: dual
  labels: {service.kubernetes.io/service-proxy-name: "{proxy}", team: red}
  annotations: {kpng.sigs.k8s.io/map-ip: "true", example.com/note: "<hello> & \"world\""}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: dual}
  externalIPs: ["192.0.2.7", "2001:db8::7"]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  sessionAffinity: ClientIP
  loadBalancerSourceRanges: ["198.51.100.0/24", "2001:db8:1::/64"]
  ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP, targetPort: dns}]
`)
	s.kubectl("patch", "service", "dual", "--subresource=status", "--type=merge", "-p",
		`{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.9","ipMode":"VIP"},{"ip":"203.0.113.10","ipMode":"Proxy"},{"hostname":"lb.example.com"}]}}}`)
	s.slices("web", 2)
	s.slices("dual", 4)
}

// TestAllSourcesGiveTheSame: the same objects give byte-identical output whether kpng watches the API server, reads
// manifests or another kpng's dump, or is fed by a central kpng.
func TestAllSourcesGiveTheSame(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.variety()
	flags := []string{"--with-service-labels=*", "--with-service-annotations=*"}
	fromKube := s.kube(flags...)
	want := map[string]string{}
	for _, node := range []string{nodeA, nodeB} {
		eventually(t, func() error {
			text, err := once(t, fromKube.API, node)
			if err == nil && strings.Count(text, "\n") != 3 {
				return errNotYet
			}
			want[node] = text
			return err
		})
		require.Equal(t, 3, strings.Count(want[node], "\n"), want[node])
	}
	// What the API server knows must be there at all: a difference below would otherwise not show it.
	require.Contains(t, want[nodeA], "203.0.113.9")
	require.NotContains(t, want[nodeA], "203.0.113.10")
	require.Contains(t, want[nodeA], "198.51.100.0/24")
	require.Contains(t, want[nodeA], `"MapIP":true`)

	same := func(name, api string) {
		for node, text := range want {
			eventually(t, func() error {
				got, err := once(t, api, node)
				if err == nil && got != text {
					t.Logf("%s differs on %s:\n%s\nfrom kube:\n%s", name, node, got, text)
					return errNotYet
				}
				return err
			})
		}
	}

	dir := t.TempDir()
	manifests := filepath.Join(dir, "manifests.yaml")
	text := s.kubectl("get", "services,endpointslices", "-o", "yaml") + "---\n" + s.kubectl("get", "nodes", "-o", "yaml")
	require.NoError(t, os.WriteFile(manifests, []byte(text), 0o600))
	same("file", kpng(t, append([]string{"file", "-i", manifests, "--service-proxy-name", s.proxyName}, flags...)...).API)

	// JSON, and a folder.
	folder := filepath.Join(dir, "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	for _, kind := range []string{"services", "endpointslices", "nodes"} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, kind+".json"), []byte(s.kubectl("get", kind, "-o", "json")), 0o600))
	}
	same("folder", kpng(t, append([]string{"file", "-i", folder, "--service-proxy-name", s.proxyName}, flags...)...).API)

	central := kpng(t, "api", "--api", fromKube.API)
	same("central", central.API)
	same("central of central", kpng(t, "api", "--api", central.API).API)

	dump := filepath.Join(dir, "dump.yaml")
	dumper := start(t, proc.Spec{
		Path: program("kpng"), Env: []string{"KUBECONFIG="},
		Args: append([]string{"kube", "--kubeconfig", k8s.Kubeconfig, "--service-proxy-name", s.proxyName, "to-file", "--output", dump}, flags...),
	})
	eventually(t, func() error {
		_, err := os.Stat(dump)
		return err
	})
	same("dump", kpng(t, "file", "-i", dump).API)
	require.True(t, dumper.Running())

	// to-local: the backend in the same process.
	local := start(t, proc.Spec{
		Path: program("kpng"),
		Args: append([]string{"file", "-i", manifests, "--service-proxy-name", s.proxyName, "to-local", "to-json", "--once", "--node-name", nodeA}, flags...),
	})
	code, err := local.Wait(patience)
	require.NoError(t, err)
	require.Zero(t, code, local.Stderr.String())
	require.Equal(t, want[nodeA], local.Stdout.String())
}

// TestCentral: one kpng on the API server feeds another, which survives the loss of the first.
func TestCentral(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(web)
	central := s.kube()
	onNode := kpng(t, "api", "--api", central.API)
	s.wantState(onNode.API, nodeA, webState)
	central.Kill()
	s.wantState(onNode.API, nodeA, webState)
	eventually(t, func() error {
		if onNode.ready(t.Context()) == nil {
			return errNotYet
		}
		return nil
	})
	central.restart(t)
	s.pod("web-new", nodeB, "10.2.0.2")
	s.wantState(onNode.API, nodeA, webState+"\n- 10.2.0.2")
	eventually(t, func() error { return onNode.ready(t.Context()) })
}

// TestFileIsWatched: an edit is a change; a broken edit is reported and changes nothing.
func TestFileIsWatched(t *testing.T) {
	t.Parallel()
	s := &scene{t: t, namespace: "default"}
	file := filepath.Join(t.TempDir(), "state.yaml")
	write := func(text string) { // as editors do: the file is another one afterwards
		next := file + ".next"
		require.NoError(t, os.WriteFile(next, []byte(s.expand(strings.ReplaceAll(text, "{proxy}", "x"))), 0o600))
		require.NoError(t, os.Rename(next, file))
	}
	good := byHand + "\n---\n" + byHandSlice
	write(good)
	k := kpng(t, "file", "-i", file, "--service-proxy-name", "x")
	s.wantState(k.API, nodeA, byHandState)
	write(strings.ReplaceAll(good, "10.9.0.1", "10.9.0.2"))
	s.wantState(k.API, nodeA, strings.ReplaceAll(byHandState, "10.9.0.1", "10.9.0.2"))
	write(strings.ReplaceAll(good, "10.9.0.1", "10.9.0.3") + "\n---\n  broken: [\n")
	eventually(t, func() error {
		if !strings.Contains(k.Stderr.String(), "state.yaml") {
			return errNotYet
		}
		return nil
	})
	s.wantState(k.API, nodeA, strings.ReplaceAll(byHandState, "10.9.0.1", "10.9.0.2"))
	write(good)
	s.wantState(k.API, nodeA, byHandState)
}
