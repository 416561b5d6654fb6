// SPDX-License-Identifier: Apache-2.0

// Package pipeexec_test runs everything that the pipe-exec example shows: the script dry against golden files and
// wet in network namespaces, and its manifests.
package pipeexec_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

func TestMain(m *testing.M) {
	// Without privilege the kernel tests fail and say so; the others can still tell something.
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

// script is the path of the example's script.
func script(t testing.TB) string {
	t.Helper()
	path, err := filepath.Abs("scripts/kpng-example-allip")
	require.NoError(t, err)
	return path
}

// needTool fails the test where a program that it needs is missing, rather than skipping it unnoticed.
func needTool(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: this test needs it (Debian: apt-get install jq iptables dash busybox bash)", err)
		}
	}
}

// outcome is what a run of the script did.
type outcome struct {
	stdout, stderr string
	status         int
}

// runnable is an exec.Cmd, here or in a lab.
type runnable interface{ Run() error }

// finish runs cmd and notes how it went.
func finish(t testing.TB, cmd *exec.Cmd, run runnable) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := run.Run()
	if cmd.ProcessState == nil {
		t.Fatalf("running %s: %v", cmd.Path, err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}
