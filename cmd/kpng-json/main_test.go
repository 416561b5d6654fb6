// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "sigs.k8s.io/kpng/internal/localtest"
)

const deadline = 30 * time.Second

// TestMain makes this binary kpng-json, when told to.
func TestMain(m *testing.M) {
	if os.Getenv("KPNG_TEST_MAIN") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func kpngJSON(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return newCommand(t, os.Args[0], args...)
}

func newCommand(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "KPNG_TEST_MAIN=1")
	cmd.WaitDelay = time.Second
	return cmd
}

func serve(t *testing.T) *Server {
	t.Helper()
	server := Start(t)
	server.Update(func(s State) {
		s.SetService(Service("ns/a", "10.0.0.1", 80))
		s.SetService(Service("ns/b", "10.0.0.2", 80))
		s.SetEndpoint("ns/b", "1", Endpoint("1.0.0.1"))
	})
	return server
}

const (
	lineA  = `{"Service":{"Namespace":"ns","Name":"a","Type":"ClusterIP","IPs":{"ClusterIPs":{"V4":["10.0.0.1"]}},"Ports":[{"Protocol":1,"Port":80,"TargetPort":8080}],"SessionAffinity":null},"Endpoints":null}`
	lineB  = `{"Service":{"Namespace":"ns","Name":"b","Type":"ClusterIP","IPs":{"ClusterIPs":{"V4":["10.0.0.2"]}},"Ports":[{"Protocol":1,"Port":80,"TargetPort":8080}],"SessionAffinity":null},"Endpoints":[{"IPs":{"V4":["1.0.0.1"]},"Scopes":{"Internal":true,"External":true}}]}`
	lineB2 = `{"Service":{"Namespace":"ns","Name":"b","Type":"ClusterIP","IPs":{"ClusterIPs":{"V4":["10.0.0.2"]}},"Ports":[{"Protocol":1,"Port":80,"TargetPort":8080}],"SessionAffinity":null},"Endpoints":null}`
)

func TestOnce(t *testing.T) {
	server := serve(t)
	for args, want := range map[string]string{
		"":                                lineA + "\n" + lineB + "\n",
		"--service=ns/b":                  lineB + "\n",
		"--service=no/such":               "",
		"--output=changes --service=ns/a": `{"Op":"set",` + lineA[1:] + "\n",
	} {
		cmd := kpngJSON(t, append(strings.Fields(args), "--once", "--node-name=n", "--api="+server.Target())...)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, want, string(out), args)
	}
	for _, r := range server.Requests() {
		require.Equal(t, "n", r.NodeName)
	}
}

// A restart of the server is no flap; a signal is no failure.
func TestFollow(t *testing.T) {
	server := serve(t)
	cmd := kpngJSON(t, "--api="+server.Target(), "--error-delay=10ms")
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(pipe)
	next := func(want string) {
		t.Helper()
		require.True(t, lines.Scan(), "no more lines")
		require.Equal(t, want, lines.Text())
	}
	next(lineA)
	next(lineB)
	streams := server.Streams()
	server.Stop()
	server.Listen()
	require.Eventually(t, func() bool { return server.Streams() > streams }, deadline, time.Millisecond)
	server.Update(func(s State) { s.Delete("ns/b/1") })
	next(lineA)
	next(lineB2)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(pipe)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.NoError(t, cmd.Wait())
}

// The end of the reader is the end, with exit status 0 and nothing said, whether or not something changes meanwhile.
func TestReaderGoes(t *testing.T) {
	for name, change := range map[string]bool{"while nothing changes": false, "while everything changes": true} {
		t.Run(name, func(t *testing.T) {
			server := serve(t)
			stop := make(chan struct{})
			changed := make(chan struct{})
			go func() {
				defer close(changed)
				for i := 0; change; i++ {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
						server.Update(func(s State) { s.SetEndpoint("ns/b", fmt.Sprint(i%2), Endpoint(fmt.Sprintf("2.0.0.%d", i%200))) })
					}
				}
			}()
			cmd := newCommand(t, "bash", "-c", `"$0" --api="$1" | head -1; echo "${PIPESTATUS[*]}"`, os.Args[0], server.Target())
			out, err := cmd.CombinedOutput()
			close(stop)
			<-changed
			require.NoError(t, err)
			require.Equal(t, lineA+"\n0 0\n", string(out))
		})
	}
}

func TestErrors(t *testing.T) {
	server := serve(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, tc := range []struct {
		args   string
		stdout *os.File
		want   string
	}{
		{args: "--service=x", want: "--service=x: want NAMESPACE/NAME"},
		{args: "--output=xml", want: "--output=xml"},
		{args: "--nope", want: "unknown flag"},
		{args: "extra", want: "extra"},
		{args: "--tls-ca=/none", want: "/none"},
		{args: "--once --timeout=200ms --error-delay=10ms --api=127.0.0.1:1", want: "no full state from 127.0.0.1:1 within 200ms"},
		{args: "--api=" + server.Target(), stdout: full, want: "cannot print the state"},
		{args: "--once --api=" + server.Target(), stdout: full, want: "no space left"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			cmd := kpngJSON(t, strings.Fields(tc.args)...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if tc.stdout != nil {
				cmd.Stdout = tc.stdout
			}
			err := cmd.Run()
			exit := &exec.ExitError{}
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode())
			said := 0
			for line := range strings.Lines(stderr.String()) {
				if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "I") {
					continue // logged
				}
				said++
				require.True(t, strings.HasPrefix(line, "kpng-json: ") && strings.Contains(line, tc.want), line)
			}
			require.Equal(t, 1, said, "%s", stderr.String())
		})
	}
}
