// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDeployManifests: the real API server accepts every kustomization of deploy/. A server-side dry run checks the
// schema (no unknown field), defaults and admission, and changes nothing.
func TestDeployManifests(t *testing.T) {
	t.Parallel()
	var folders []string
	for _, pattern := range []string{"*", "*/*"} {
		found, err := filepath.Glob(filepath.Join(repo, "deploy", pattern, "kustomization.yaml"))
		require.NoError(t, err)
		for _, file := range found {
			folders = append(folders, filepath.Dir(file))
		}
	}
	require.NotEmpty(t, folders)
	namespaces := regexp.MustCompile(`(?m)^  namespace: (\S+)$`)
	for _, folder := range folders {
		name, err := filepath.Rel(repo, folder)
		require.NoError(t, err)
		t.Run(name, func(t *testing.T) {
			s := &scene{t: t} // in no namespace of its own: the manifests name theirs
			manifests := s.kubectl("kustomize", folder)
			// A dry run makes no namespace, which the objects in it need to be checked.
			for _, m := range namespaces.FindAllStringSubmatch(manifests, -1) {
				require.NoError(t, k8s.AddNamespace(t.Context(), m[1]))
			}
			t.Log(s.kubectlIn(manifests, "apply", "--dry-run=server", "--validate=strict", "-f", "-"))
		})
	}
}

// TestExampleManifests: the same for what stands in examples/.
func TestExampleManifests(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(repo, "examples", "*", "manifests", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	namespaces := regexp.MustCompile(`(?m)^\s+namespace: (\S+)$`)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range namespaces.FindAllStringSubmatch(string(text), -1) {
				require.NoError(t, k8s.AddNamespace(t.Context(), m[1]))
			}
			s := &scene{t: t}
			s.kubectlIn(string(text), "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		})
	}
}
