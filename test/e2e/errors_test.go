// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestOneClearLine: what cannot work ends with one line that says why, and a status other than 0; no stack trace, no
// dump of the help.
func TestOneClearLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o600))
	notAKubeconfig := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(notAKubeconfig, []byte("{nonsense"), 0o600))
	badManifest := filepath.Join(dir, "bad.yaml")
	require.NoError(t, os.WriteFile(badManifest, []byte("kind: Service\nmetadata: [\n"), 0o600))
	kubeconfig := k8s.Kubeconfig
	_, pair, _ := pki(t)

	for _, test := range []struct {
		command string
		says    string // what the line must have
	}{
		{"kpng nonsense", "nonsense"},
		{"kpng kube nonsense", "nonsense"},
		{"kpng kube to-nonsense", "to-nonsense"},
		{"kpng kube --nonsense to-api", "--nonsense"},
		{"kpng kube to-api --nonsense", "--nonsense"},
		{"kpng kube --kubeconfig " + filepath.Join(dir, "none") + " to-api", "none"},
		{"kpng kube --kubeconfig " + notAKubeconfig + " to-api", "kubeconfig"},
		{"kpng kube --server https://127.0.0.1:1 to-api", "127.0.0.1:1"},
		{"kpng kube --service-proxy-name=a/b/c --kubeconfig " + kubeconfig + " to-api", "service-proxy-name"},
		{"kpng file to-api", "input"},
		{"kpng file -i " + filepath.Join(dir, "none.yaml") + " to-api", "none.yaml"},
		{"kpng file -i " + badManifest + " to-api", "bad.yaml"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --listen nonsense", "nonsense"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --listen tcp://0.0.0.0:12090", "--listen-insecure"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --listen tcp://192.0.2.1:12090 --listen-insecure", "192.0.2.1:12090"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --listen-tls-key " + junk + " --listen-tls-crt " + junk, "junk.pem"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --listen-tls-key " + junk, "listen-tls-crt"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --listen-tls-ca " + pair.Cert, "listen-tls-key"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --listen-tls-key " + pair.Key + " --listen-tls-crt " + pair.Cert +
			" --listen-tls-ca " + filepath.Join(dir, "no-ca"), "no-ca"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-api --metrics-listen nonsense", "metrics-listen"},
		{"kpng kube --kubeconfig " + kubeconfig + " to-file --output " + filepath.Join(dir, "no", "such", "dump"), "dump"},
		{"kpng local to-nonsense", "to-nonsense"},
		{"kpng-json --nonsense", "--nonsense"},
		{"kpng-json nonsense", "nonsense"},
		{"kpng-json --output=nonsense", "nonsense"},
		{"kpng-json --once --timeout=1s --api 127.0.0.1:1", "127.0.0.1:1"},
		{"kpng-json --tls-ca " + filepath.Join(dir, "no-ca"), "no-ca"},
		{"kpng-json --tls-key " + junk + " --tls-crt " + junk, "junk.pem"},
		{"kpng-callout --nonsense", "--nonsense"},
		{"kpng-callout -- /no/such/program", "/no/such/program"},
		{"kpng-callout --once --timeout=1s --api 127.0.0.1:1", "127.0.0.1:1"},
	} {
		t.Run(strings.ReplaceAll(test.command, dir, ""), func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(test.command)
			if strings.HasSuffix(test.command, "to-api") { // the default address is one for all
				words = append(words, "--listen", "unix://"+filepath.Join(shortDir(t), "s"))
			}
			r := runToEnd(t, words[0], words[1:]...)
			require.NotZero(t, r.Code)
			require.Empty(t, r.Stdout)
			requireClear(t, words[0], r.Stderr, test.says)
		})
	}
}

// requireClear looks for one line "PROGRAM [SUBCOMMAND]: why" at the end of what was logged, and for nothing that looks
// like a crash.
func requireClear(t *testing.T, program, stderr, says string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := lines[len(lines)-1]
	require.Contains(t, last, says, stderr)
	isError := regexp.MustCompile(`^` + program + `( [a-z-]+)*: `).MatchString
	require.True(t, isError(last), stderr)
	for _, crash := range []string{"goroutine ", "panic:", "Usage:", "Available Commands"} {
		require.NotContains(t, stderr, crash)
	}
	errorLines := 0
	for _, line := range lines {
		if isError(line) {
			errorLines++
		}
	}
	require.Equal(t, 1, errorLines, stderr)
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kpng", "kpng-json", "kpng-callout"} {
		help := runToEnd(t, name, "--help")
		require.Zero(t, help.Code)
		require.Contains(t, help.Stdout, "Usage:")
		require.Contains(t, help.Stdout, "Examples:")
		version := runToEnd(t, name, "version")
		require.Zero(t, version.Code, version.Stderr)
		require.NotEmpty(t, strings.TrimSpace(version.Stdout))
		completion := runToEnd(t, name, "completion", "bash")
		require.Zero(t, completion.Code, completion.Stderr)
		require.Contains(t, completion.Stdout, "complete")
	}
}

// leastPrivilege is all that kpng needs.
const leastPrivilege = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "{ns}"}
rules:
- {apiGroups: [""], resources: [services, nodes], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "{ns}"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "{ns}"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "{ns}"}]
`

// TestLeastPrivilege: list and watch of three resources are enough, and each of them is needed: without it kpng says
// which one is missing, and ends.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	require.Equal(t, rules(t, leastPrivilege), rules(t, readFile(t, "deploy", "rbac", "clusterrole.yaml")), "the role that deploy/ gives")
	s.webPods()
	s.apply(web)
	kubeconfig, err := k8s.KubeconfigFor(s.namespace)
	require.NoError(t, err)

	r := runToEnd(t, "kpng", "kube", "--kubeconfig", kubeconfig, "--service-proxy-name", s.proxyName, "to-api",
		"--listen", "unix://"+shortDir(t)+"/s")
	require.NotZero(t, r.Code)
	requireClear(t, "kpng", r.Stderr, "forbidden")
	require.Regexp(t, `services|endpointslices|nodes`, r.Stderr)

	s.apply(leastPrivilege)
	k := kpng(t, "kube", "--kubeconfig", kubeconfig, "--service-proxy-name", s.proxyName)
	s.wantState(k.API, nodeA, webState)
	s.apply(byHand + "\n---\n" + byHandSlice)
	s.wantState(k.API, nodeA, byHandState+webState)
	require.NotContains(t, k.Stderr.String(), "forbidden")

	role := "/apis/rbac.authorization.k8s.io/v1/clusterroles/" + s.namespace
	for _, missing := range []string{"services", "endpointslices", "nodes"} {
		text := strings.ReplaceAll(leastPrivilege, missing, "none-"+missing)
		s.apply(text)
		require.NoError(t, k8s.Do(t.Context(), http.MethodGet, role, nil, nil))
		r := runToEnd(t, "kpng", "kube", "--kubeconfig", kubeconfig, "--service-proxy-name", s.proxyName, "to-api",
			"--listen", "unix://"+shortDir(t)+"/s")
		require.NotZero(t, r.Code)
		requireClear(t, "kpng", r.Stderr, missing)
	}
}

// rules are those of the ClusterRole in the first of the manifests.
func rules(t *testing.T, manifests string) any {
	t.Helper()
	first, _, _ := strings.Cut(manifests, "\n---\n")
	var role struct{ Rules []map[string][]string }
	require.NoError(t, yaml.Unmarshal([]byte(first), &role))
	require.NotEmpty(t, role.Rules)
	return role.Rules
}
