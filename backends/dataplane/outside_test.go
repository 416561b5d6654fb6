// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dataplane_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutside builds the example in a module of its own, as its readers do: nothing in it needs to be inside kpng.
func TestOutside(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	for from, to := range map[string]string{"examples/mail/main.go": "main.go", "go.sum": "go.sum"} {
		content, err := os.ReadFile(filepath.Join(root, from))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), content, 0o600))
	}
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		// What kpng itself was built with is there, and no more is needed.
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return string(out)
	}
	run("go", "mod", "init", "example.org/kpng-mail")
	run("go", "mod", "edit", "-require=sigs.k8s.io/kpng@v0.0.0", "-replace=sigs.k8s.io/kpng="+root)
	run("go", "build", ".")
	require.Contains(t, run("./kpng-mail", "--help"), "--cluster-cidrs")
}

// TestElsewhere: the model is for any operating system.
func TestElsewhere(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "build", ".")
	cmd.Env = append(os.Environ(), "GOOS=darwin", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
