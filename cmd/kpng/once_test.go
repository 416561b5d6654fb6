// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// execute runs kpng as its main would, until it ends or the test's patience does.
func execute(t *testing.T, command string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	root := rootCommand()
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(strings.Fields(command))
	err := root.ExecuteContext(ctx)
	require.NoError(t, ctx.Err(), "%s goes on for ever", command)
	return err
}

// A script that asks for one state gets it, or an error in time that says what is missing.
func TestOnceEnds(t *testing.T) {
	dir := t.TempDir()
	nobody := "unix://" + filepath.Join(dir, "nobody.sock")
	output := filepath.Join(dir, "state.yaml")
	for _, sink := range []string{"to-local to-json", "to-local to-callout", "to-file -o " + output} {
		t.Run(sink, func(t *testing.T) {
			err := execute(t, "api --api="+nobody+" "+sink+" --once --timeout=300ms")
			require.ErrorContains(t, err, "no whole state within 300ms (--timeout)")
			require.ErrorContains(t, err, "nobody.sock")
		})
	}
	require.NoFileExists(t, output)

	manifest := filepath.Join(dir, "node.yaml")
	require.NoError(t, os.WriteFile(manifest, []byte("{apiVersion: v1, kind: Node, metadata: {name: node-1}}\n"), 0o600))
	require.NoError(t, execute(t, "file -i "+manifest+" to-local to-json --once --timeout=10s"))
	require.NoError(t, execute(t, "file -i "+manifest+" to-file --once -o "+output))
	require.FileExists(t, output)
}

// What the help shows can be typed.
func TestExamplesOfBackends(t *testing.T) {
	for command, want := range map[string]string{
		"local to-json":         "kpng local to-json --output=changes",
		"file to-local to-json": "kpng kube to-local to-json --output=changes",
	} {
		cmd, _, err := rootCommand().Find(strings.Fields(command))
		require.NoError(t, err)
		require.Contains(t, cmd.Example, "  "+want)
		require.NotContains(t, cmd.Example, "  to-json")
	}
}
