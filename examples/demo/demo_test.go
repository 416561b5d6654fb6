// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

// runMainEnv makes the test binary be the demo.
const runMainEnv = "KPNG_DEMO_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// demoCommand is the demo as `make demo` runs it, with a temporary folder that must be empty afterwards.
func demoCommand(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	tmp = t.TempDir()
	cmd = exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), runMainEnv+"=1", "TMPDIR="+tmp)
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, tmp
}

// needNamespaces skips where the demo could not run either.
func needNamespaces(t *testing.T) {
	t.Helper()
	out, err := exec.Command("unshare", "--user", "--net", "true").CombinedOutput()
	if netlab.Privileged() != nil && err != nil {
		t.Skipf("neither root nor user namespaces: %s", out)
	}
}

func TestDemo(t *testing.T) {
	needNamespaces(t)
	cmd, tmp := demoCommand(t)
	out, err := cmd.CombinedOutput()
	text := string(out)
	require.NoError(t, err, text)
	for _, line := range []string{
		"✓ 4 endpoints, the two of local-pod are Local",
		"✓ TCP 10.0.0.55:6000           answered by local-pod, which saw the client as 172.31.0.100",
		"✓ UDP datagram 10.0.0.55:6000  answered by local-pod, which saw the client as 172.31.0.100",
		"✓ ping 10.0.0.55               answered by local-pod, which saw the client as 172.31.0.100",
		"✓ TCP [1000::55]:6000          answered by local-pod, which saw the client as fd31::100",
		"✓ UDP datagram [1000::55]:6000 answered by local-pod, which saw the client as fd31::100",
		"✓ ping 1000::55                answered by local-pod, which saw the client as fd31::100",
		"✓ the rules are gone",
		"✓ 10.0.0.55: nobody answers TCP, UDP or ping",
		"✓ 1000::55: nobody answers TCP, UDP or ping",
		"✓ the rules are back",
		"All as it should be",
	} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, "✗")
	requireNothingLeft(t, tmp)
}

// Where the test runs as root, the demo is shown once by a user who is nobody.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("TestDemo is this already")
	}
	const nobody = 65534
	root, err := repository()
	require.NoError(t, err)
	// A part of the repository, where that user may read it.
	dir, err := os.MkdirTemp("", "kpng-demo-test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	files := []string{"go.mod", "examples/pipe-exec/scripts/kpng-example-allip"}
	for _, m := range manifestFiles {
		files = append(files, "examples/demo/"+m)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(root, f))
		require.NoError(t, err)
		to := filepath.Join(dir, f)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, data, 0o755))
	}
	require.NoError(t, prepare(t.Context(), root, filepath.Join(dir, "bin")))
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "demo"), self, 0o755))
	tmp := filepath.Join(dir, "tmp")
	require.NoError(t, os.Mkdir(tmp, 0o700))
	require.NoError(t, os.Chown(tmp, nobody, nobody))

	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "demo"), "-bin="+filepath.Join(dir, "bin"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), runMainEnv+"=1", "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "a user namespace could not be made") {
		t.Skipf("%s", out)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "All as it should be")
	requireNothingLeft(t, tmp)
}

// Interrupted in the middle it cleans up and says that it did not finish.
func TestInterrupted(t *testing.T) {
	needNamespaces(t)
	cmd, tmp := demoCommand(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var text strings.Builder
	interrupted := false
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		if strings.Contains(lines.Text(), "started kpng-callout") && !interrupted {
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
			interrupted = true
		}
	}
	require.True(t, interrupted, "%s%s", &text, &stderr)
	require.Error(t, cmd.Wait())
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s%s", &text, &stderr)
	require.Contains(t, stderr.String(), "interrupted")
	require.Contains(t, text.String(), "namespaces are gone")
	requireNothingLeft(t, tmp)
}

// Killed, it cannot clean up, but the kernel ends all that it started.
func TestKilled(t *testing.T) {
	needNamespaces(t)
	cmd, tmp := demoCommand(t)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), "the rules are in this-node's kernel") {
	}
	require.NotEmpty(t, lines.Text(), "the demo ended")
	require.NotEmpty(t, processesIn(t, tmp))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return len(processesIn(t, tmp)) == 0 }, 20*time.Second, 20*time.Millisecond)
}

// A program that fails is named and its log is shown.
func TestFailingProgram(t *testing.T) {
	needNamespaces(t)
	bin := t.TempDir()
	for name, does := range map[string]string{
		"kpng": "echo kpng: no such thing >&2; exit 3", "kpng-json": "exec sleep 600", "kpng-callout": "exec sleep 600",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+does+"\n"), 0o755))
	}
	cmd, tmp := demoCommand(t, "-bin="+bin)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Regexp(t, `kpng ended: exit status 3`, string(out))
	require.Contains(t, string(out), "--- log of kpng\nkpng: no such thing\n")
	requireNothingLeft(t, tmp)
}

func TestWrongArguments(t *testing.T) {
	cmd, _ := demoCommand(t, "fast")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, "demo: unexpected argument \"fast\"\n", string(out))
}

// requireNothingLeft looks for files, and for processes that know the folder.
func requireNothingLeft(t *testing.T, tmp string) {
	t.Helper()
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Empty(t, processesIn(t, tmp))
}

// processesIn are the processes that were started with a temporary folder.
func processesIn(t *testing.T, tmp string) (procs []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, f := range files {
		if env, err := os.ReadFile(f); err == nil && bytes.Contains(env, []byte("TMPDIR="+tmp+"\x00")) {
			procs = append(procs, f)
		}
	}
	return procs
}

func TestWithoutNode(t *testing.T) {
	manifest, err := os.ReadFile(slicesFile)
	require.NoError(t, err)
	edited, removed, err := withoutNode(manifest, thisNode)
	require.NoError(t, err)
	require.Equal(t, []string{"11.0.1.2", "1100::102"}, removed)
	require.NotContains(t, string(edited), localPod)
	require.Contains(t, string(edited), "11.0.2.2")
	again, removed, err := withoutNode(edited, thisNode)
	require.NoError(t, err)
	require.Empty(t, removed)
	require.Equal(t, string(edited), string(again))
	_, _, err = withoutNode([]byte("a: b\n---\n}"), thisNode)
	require.ErrorContains(t, err, "document 2")
}
