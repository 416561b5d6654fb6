// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/localtest"
)

// TestMain lets the tests run the program itself: this test binary is it, when told so.
func TestMain(m *testing.M) {
	if os.Getenv("KPNG_TEST_PROGRAM") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const patience = time.Minute

// program is kpng-callout as a process, fed by server.
func program(t *testing.T, server *localtest.Server, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"--node-name=n1", "--api=" + server.Target()}, args...)...)
	cmd.Env = append(os.Environ(), "KPNG_TEST_PROGRAM=1")
	return cmd
}

// server serves two services.
func server(t *testing.T) *localtest.Server {
	t.Helper()
	s := localtest.Start(t)
	s.Update(func(s localtest.State) {
		s.SetService(localtest.Service("ns/a", "10.0.0.1", 80))
		s.SetService(localtest.Service("ns/b", "10.0.0.2", 80))
	})
	return s
}

func TestOnce(t *testing.T) {
	tests := map[string]struct {
		env    string
		args   []string
		stdout string
		stderr string // the last line
		status int
	}{
		"default":         {args: []string{"--once"}, stdout: `{"Service":{"Namespace":"ns","Name":"a",`},
		"CALLOUT":         {env: "CALLOUT=jq", args: []string{"--once"}, stdout: "    \"Namespace\": \"ns\",\n    \"Name\": \"a\",\n"},
		"arguments":       {env: "CALLOUT=false", args: []string{"--once", "--", "jq", "-r", ".Service.Name"}, stdout: "a\nb\n"},
		"environment":     {args: []string{"--once", "--", "sh", "-c", `echo "$KPNG_NODE_NAME $KPNG_REVISION $KPNG_REASON $KPNG_ATTEMPT $KPNG_ITEMS"`}, stdout: "n1 1 start 1 2\n"},
		"failure":         {args: []string{"--once", "--", "sh", "-c", "exit 3"}, stderr: "kpng-callout: callout program /bin/sh: exit status 3", status: 1},
		"missing":         {env: "CALLOUT=no-such", stderr: `kpng-callout: $CALLOUT "no-such": executable file not found in $PATH; set it to the path or the name of an executable, or give a program after --`, status: 1},
		"a command line":  {env: "CALLOUT=jq .", stderr: `to pass arguments, use: -- jq .`, status: 1},
		"no dash":         {args: []string{"jq"}, stderr: `kpng-callout: unexpected argument "jq": the program and its arguments go after --`, status: 1},
		"flags":           {args: []string{"--timeout=-1s", "--log-format=x"}, stderr: `kpng-callout: --log-format "x": want text or json; --timeout -1s: want 0 or more`, status: 1},
		"metrics address": {args: []string{"--metrics-listen=nowhere"}, stderr: "kpng-callout: --metrics-listen", status: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := program(t, server(t), test.args...)
			cmd.Env = append(cmd.Env, "PATH=/bin:/usr/bin", test.env)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run()
			require.Equal(t, test.status, cmd.ProcessState.ExitCode(), stderr.String())
			require.Contains(t, stdout.String(), test.stdout)
			if test.status != 0 {
				require.Empty(t, stdout.String())
				lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
				require.Len(t, lines, 1)
				require.Contains(t, lines[0], test.stderr)
			}
		})
	}
}

// hanging starts the program with one that hangs, and returns that one's process.
func hanging(t *testing.T, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer, child int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	script := fmt.Sprintf(`echo $$ >%[1]s.new; mv %[1]s.new %[1]s; exec sleep 1000`, file)
	cmd = program(t, server(t), append(args, "--", "sh", "-c", script)...)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	require.Eventually(t, func() bool {
		content, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		child, err = strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil
	}, patience, 5*time.Millisecond)
	return cmd, stderr, child
}

func requireGone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, patience, 5*time.Millisecond)
}

func TestSIGTERM(t *testing.T) {
	cmd, stderr, child := hanging(t)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), stderr.String())
	requireGone(t, child)
}

func TestSecondSIGTERM(t *testing.T) {
	cmd, _, child := hanging(t, "--timeout=0")
	for range 2 {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		time.Sleep(200 * time.Millisecond)
	}
	require.Error(t, cmd.Wait())
	requireGone(t, child)
}

// TestKill: no run outlives a kpng-callout that was killed, to work beside those of the next one.
func TestKill(t *testing.T) {
	cmd, _, child := hanging(t)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	requireGone(t, child)
}

// TestHead: `kpng-callout | head` ends quietly.
func TestHead(t *testing.T) {
	cmd := program(t, server(t), "--", "yes")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	_, err = io.ReadFull(stdout, make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, stdout.Close())
	require.NoError(t, cmd.Wait())
}

func TestMetricsAndHealth(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	ok := filepath.Join(t.TempDir(), "ok")
	cmd := program(t, server(t), "--metrics-listen="+address, "--resync=20ms", "--", "test", "-e", ok)
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	get := func(path string) (int, string) {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			return 0, ""
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}
	require.Eventually(t, func() bool {
		status, body := get("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "exit status 1")
	}, patience, 10*time.Millisecond, "not ready while the program fails")
	require.NoError(t, os.WriteFile(ok, nil, 0o600))
	require.Eventually(t, func() bool {
		status, _ := get("/readyz")
		return status == http.StatusOK
	}, patience, 10*time.Millisecond)
	_, metrics := get("/metrics")
	for _, name := range []string{`kpng_callout_runs_total{result="failure"} `, `kpng_callout_runs_total{result="success"} `,
		"kpng_callout_run_duration_seconds_count ", "kpng_callout_running ", "kpng_callout_last_success_timestamp_seconds ", "kpng_callout_coalesced_total "} {
		require.Contains(t, metrics, "\n"+name)
	}
}
