// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	"sigs.k8s.io/kpng/internal/localtest"
)

// backend is the command at work, fed by a server over a socket. Its program notes every run in a file of its own.
type backend struct {
	t      *testing.T
	cmd    *Cmd
	server *localtest.Server
	dir    string
	done   chan error
	stop   context.CancelFunc
}

// noteRun is a program that writes its surroundings and its input to a file that appears at once.
const noteRun = `
n=$(ls "$DIR" | grep -c '^run') || :
env | grep ^KPNG_ | sort >"$DIR/new"
cat >>"$DIR/new"
mv "$DIR/new" "$DIR/run$n"
`

func startBackend(t *testing.T, script string, flags ...string) *backend {
	t.Helper()
	b := &backend{t: t, cmd: New(), server: localtest.Start(t), dir: t.TempDir(), done: make(chan error, 1)}
	t.Setenv("DIR", b.dir)
	b.launch(script, flags...)
	return b
}

// launch starts the client, with the flags in the order in which our binary binds them.
func (b *backend) launch(script string, flags ...string) {
	b.t.Helper()
	runner := &client.Runner{}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	b.cmd.BindFlags(fs)
	runner.BindFlags(fs)
	require.NoError(b.t, fs.Parse(append([]string{"--node-name=n1", "--error-delay=10ms", "--api=" + b.server.Target()}, flags...)))
	require.NoError(b.t, b.cmd.SetArgs([]string{"sh", "-c", script}))
	ctx, stop := context.WithCancel(b.t.Context())
	b.stop = stop
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		b.done <- runner.RunCmd(ctx, b.cmd)
	}()
	b.t.Cleanup(func() {
		stop()
		<-finished
	})
}

// run waits for the n-th run, from 0, and returns its environment and its items.
func (b *backend) run(n int) (env map[string]string, items []*fullstate.ServiceEndpoints) {
	b.t.Helper()
	var content []byte
	require.Eventually(b.t, func() bool {
		var err error
		content, err = os.ReadFile(filepath.Join(b.dir, fmt.Sprint("run", n)))
		return err == nil
	}, forever, 5*time.Millisecond, "run %d", n)
	env = map[string]string{}
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && strings.HasPrefix(name, "KPNG_") {
			env[strings.TrimPrefix(name, "KPNG_")] = value
			continue
		}
		item := &fullstate.ServiceEndpoints{}
		require.NoError(b.t, json.Unmarshal([]byte(line), item))
		items = append(items, item)
	}
	return env, items
}

// requireRun requires that the n-th run was about services (and that each has one endpoint if it does not start with "-").
func (b *backend) requireRun(n int, revision, reason string, services ...string) {
	b.t.Helper()
	env, items := b.run(n)
	require.Equal(b.t, map[string]string{
		"NODE_NAME": "n1", "REVISION": revision, "REASON": reason, "ATTEMPT": "1", "ITEMS": fmt.Sprint(len(services)),
	}, env)
	var got []string
	for _, item := range items {
		name := item.Service.NamespacedName()
		if len(item.Endpoints) == 0 {
			name = "-" + name
		}
		got = append(got, name)
	}
	require.Equal(b.t, services, got)
}

// requireQuiet requires that there are no more than n runs, though there was time for more.
func (b *backend) requireQuiet(n int) {
	b.t.Helper()
	time.Sleep(100 * time.Millisecond)
	entries, err := os.ReadDir(b.dir)
	require.NoError(b.t, err)
	require.Len(b.t, entries, n)
}

func set(services ...string) func(localtest.State) {
	return func(s localtest.State) {
		for i, name := range services {
			s.SetService(localtest.Service(name, fmt.Sprintf("10.0.0.%d", i+1), 80))
			s.SetEndpoint(name, "a", localtest.Endpoint("11.0.0.1"))
		}
	}
}

func TestEveryChangeIsARun(t *testing.T) {
	b := startBackend(t, noteRun)
	b.requireRun(0, "1", "start") // also when there is nothing: a backend may have something to clear

	b.server.Update(set("ns/a", "ns/b"))
	b.requireRun(1, "2", "change", "ns/a", "ns/b")

	b.server.Update(func(s localtest.State) { s.SetEndpoint("ns/b", "b", localtest.Endpoint("1100::1")) })
	b.requireRun(2, "3", "change", "ns/a", "ns/b")
	_, items := b.run(2)
	require.Len(t, items[1].Endpoints, 2)

	b.server.Update(func(s localtest.State) { s.Delete("ns/a") })
	b.requireRun(3, "4", "change", "ns/b")

	b.server.Stop()
	b.server.Listen()
	require.Eventually(t, func() bool { return b.server.Streams() == 2 }, forever, 5*time.Millisecond)
	b.requireQuiet(4) // nothing was missed

	b.server.Stop()
	b.server.Update(func(s localtest.State) { s.Delete("ns/b") })
	b.server.Listen()
	b.requireRun(4, "5", "change") // what was missed, at once
	require.NoError(t, b.cmd.Ready())

	b.stop()
	require.NoError(t, <-b.done)
}

func TestInputIsTheJSONOfTheClient(t *testing.T) {
	b := &backend{t: t, cmd: New(), server: localtest.Start(t), dir: t.TempDir(), done: make(chan error, 1)}
	t.Setenv("DIR", b.dir)
	b.server.Update(func(s localtest.State) {
		s.SetService(&localv1.Service{
			Namespace: "default", Name: "kpng-example", Type: "ClusterIP",
			IPs: &localv1.ServiceIPs{
				ClusterIPs: &localv1.IPSet{}, ExternalIPs: &localv1.IPSet{V4: []string{"10.0.0.55"}, V6: []string{"1000::55"}}, Headless: true,
			},
			Ports: []*localv1.PortMapping{{Protocol: localv1.Protocol_TCP, Port: 6000, TargetPort: 6000}},
		})
		s.SetEndpoint("default/kpng-example", "a", &localv1.Endpoint{IPs: localv1.NewIPSet("11.0.2.2"), Local: true})
	})
	b.launch(`cat >"$DIR/input"`, "--once")
	require.NoError(t, <-b.done)
	input, err := os.ReadFile(filepath.Join(b.dir, "input"))
	require.NoError(t, err)
	require.Equal(t, `{"Service":{"Namespace":"default","Name":"kpng-example","Type":"ClusterIP","IPs":{"ClusterIPs":{},`+
		`"ExternalIPs":{"V4":["10.0.0.55"],"V6":["1000::55"]},"Headless":true},`+
		`"Ports":[{"Protocol":1,"Port":6000,"TargetPort":6000}],"SessionAffinity":null},`+
		`"Endpoints":[{"IPs":{"V4":["11.0.2.2"]},"Local":true}]}`+"\n", string(input))
}

func TestPerService(t *testing.T) {
	b := startBackend(t, noteRun, "--per-service")
	require.Eventually(t, func() bool { return b.server.Streams() == 1 }, forever, 5*time.Millisecond)
	b.requireQuiet(0) // no service, no run

	b.server.Update(set("ns/a", "ns/b"))
	b.requireRun(0, "2", "change", "ns/a")
	b.requireRun(1, "2", "change", "ns/b")

	b.server.Update(func(s localtest.State) { s.Delete("ns/a/a") })
	b.requireRun(2, "3", "change", "-ns/a")

	b.server.Update(func(s localtest.State) { s.Delete("ns/a") })
	b.requireRun(3, "4", "delete", "-ns/a")

	b.server.Stop()
	b.server.Update(set("ns/c"))
	b.server.Listen()
	b.requireRun(4, "5", "change", "ns/c") // the difference, not everything again
	b.requireQuiet(5)
}

func TestPerServiceStart(t *testing.T) {
	b := &backend{t: t, cmd: New(), server: localtest.Start(t), dir: t.TempDir(), done: make(chan error, 1)}
	t.Setenv("DIR", b.dir)
	b.server.Update(set("ns/a", "ns/b"))
	b.launch(noteRun, "--per-service", "--once")
	b.requireRun(0, "1", "start", "ns/a")
	b.requireRun(1, "1", "start", "ns/b")
	require.NoError(t, <-b.done)
}

func TestResyncFlag(t *testing.T) {
	b := startBackend(t, noteRun, "--resync=50ms")
	b.requireRun(0, "1", "start")
	b.requireRun(1, "1", "resync")
	b.requireRun(2, "1", "resync")
}

// TestChangesDuringARun: N changes while the program runs are one further run, with the newest state.
func TestChangesDuringARun(t *testing.T) {
	b := startBackend(t, noteRun+`while [ -e "$DIR/../hold" ]; do sleep 0.02; done`)
	hold := filepath.Join(filepath.Dir(b.dir), "hold")
	require.NoError(t, os.WriteFile(hold, nil, 0o600))
	defer os.Remove(hold)
	b.run(0)
	const changes = 20
	for i := range changes {
		b.server.Update(set(fmt.Sprintf("ns/s%02d", i)))
		require.Eventually(t, func() bool { return len(b.server.Requests()) >= i+3 }, forever, time.Millisecond,
			"the client is not held up by the run")
	}
	b.requireQuiet(1)
	require.NoError(t, os.Remove(hold))
	env, items := b.run(1)
	require.Len(t, items, changes)
	require.Equal(t, fmt.Sprint(changes+1), env["REVISION"])
	b.requireQuiet(2)
	require.EqualValues(t, changes-1, value(t, b.cmd.metrics, "kpng_callout_coalesced_total", ""))
}

func TestFailedRunIsRepeated(t *testing.T) {
	b := startBackend(t, noteRun+`test -e "$DIR/run1"`)
	b.requireRun(0, "1", "start")
	env, _ := b.run(1)
	require.Equal(t, map[string]string{"NODE_NAME": "n1", "REVISION": "1", "REASON": "retry", "ATTEMPT": "2", "ITEMS": "0"}, env)
	require.Eventually(t, func() bool { return b.cmd.Ready() == nil }, forever, 5*time.Millisecond)
}

func TestHangingProgramIsRepeated(t *testing.T) {
	b := startBackend(t, noteRun+`test -e "$DIR/run1" || sleep 1000`, "--timeout=200ms")
	b.run(1)
	require.Eventually(t, func() bool { return b.cmd.Ready() == nil }, forever, 5*time.Millisecond)
	require.EqualValues(t, 1, value(t, b.cmd.metrics, "kpng_callout_runs_total", resultTimeout))
}

func TestOnce(t *testing.T) {
	tests := map[string]struct {
		script string
		flags  []string
		want   string
		runs   int
	}{
		"success":               {noteRun, nil, "", 1},
		"failure":               {noteRun + "exit 7", nil, "callout program /bin/sh: exit status 7", 1},
		"too slow":              {noteRun + "sleep 1000", []string{"--timeout=500ms"}, "callout program /bin/sh: killed, because it ran for longer than --timeout", 1},
		"per service":           {noteRun, []string{"--per-service"}, "", 2},
		"per service, failure":  {noteRun + `grep -q Name.:.b "$DIR/run$n" && exit 7; :`, []string{"--per-service"}, "callout program /bin/sh for service ns/b: exit status 7", 2},
		"per service, failures": {noteRun + "exit 7", []string{"--per-service"}, "2 runs failed; the first: callout program /bin/sh for service ns/a: exit status 7", 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", "/bin:/usr/bin")
			b := &backend{t: t, cmd: New(), server: localtest.Start(t), dir: t.TempDir(), done: make(chan error, 1)}
			t.Setenv("DIR", b.dir)
			b.server.Update(set("ns/a", "ns/b"))
			b.launch(test.script, append(test.flags, "--once")...)
			err := <-b.done
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, strings.ReplaceAll(test.want, "/bin/sh", b.cmd.program.path))
			}
			b.requireQuiet(test.runs)
		})
	}
}

// TestStop: when it is told to stop, a run may end, none begins, and that is no failure.
func TestStop(t *testing.T) {
	b := startBackend(t, `touch "$DIR/begun"; sleep 0.3; touch "$DIR/ended"`)
	require.Eventually(t, func() bool { return exists(b.dir, "begun") }, forever, 5*time.Millisecond)
	b.server.Update(set("ns/a"))
	b.stop()
	require.NoError(t, <-b.done)
	require.True(t, exists(b.dir, "ended"))
	require.EqualValues(t, 1, value(t, b.cmd.metrics, "kpng_callout_runs_total", resultSuccess))
}

func exists(parts ...string) bool {
	_, err := os.Stat(filepath.Join(parts...))
	return err == nil
}

func TestOutputClosed(t *testing.T) {
	b := &backend{t: t, cmd: New(), server: localtest.Start(t), dir: t.TempDir(), done: make(chan error, 1)}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, r.Close())
	b.cmd.stdout = w
	b.cmd.OutputClosed = func() { b.stop() }
	b.launch(`echo hello`)
	require.NoError(t, <-b.done)
}

// TestFlagsAndProgram: every fault of the command line is told at once, at the start.
func TestFlagsAndProgram(t *testing.T) {
	cmd := New()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.BindFlags(fs)
	require.NoError(t, fs.Parse([]string{"--timeout=-1s", "--resync=-1s"}))
	t.Setenv("CALLOUT", "no-such")
	err := cmd.SetArgs(nil)
	require.ErrorContains(t, err, "--timeout")
	require.ErrorContains(t, err, "--resync")
	require.ErrorContains(t, err, "no-such")

	// A caller that does not look at SetArgs ends with the first request.
	sink := cmd.Sink()
	sink.Setup()
	_, err = sink.WaitRequest()
	require.ErrorContains(t, err, "no-such")
	require.NoError(t, cmd.Finish(t.Context()))
	require.Error(t, cmd.Ready())
}

func TestRegistered(t *testing.T) {
	for _, use := range backendcmd.Registered() {
		if use.Use == "to-callout" {
			require.IsType(t, &Cmd{}, use.New())
			return
		}
	}
	t.Fatal("to-callout is not registered")
}

func TestDescribe(t *testing.T) {
	tests := map[string]struct {
		args []string
		want []string
		err  string
	}{
		"nothing":            {nil, nil, ""},
		"after the dash":     {[]string{"--resync=1s", "--", "jq", "-c", "."}, []string{"jq", "-c", "."}, ""},
		"without a dash":     {[]string{"jq"}, nil, `unexpected argument "jq": the program and its arguments go after --`},
		"before the dash":    {[]string{"x", "--", "jq"}, nil, `unexpected argument "x"`},
		"a dash and no more": {[]string{"--"}, nil, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			backend := New()
			ran := errors.New("ran")
			var got []string
			cmd := &cobra.Command{Use: "to-callout", SilenceErrors: true, SilenceUsage: true, RunE: func(_ *cobra.Command, args []string) error {
				got = args
				return ran
			}}
			backend.Describe(cmd)
			backend.BindFlags(cmd.Flags())
			cmd.SetArgs(append([]string{}, test.args...))
			err := cmd.Execute()
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.ErrorIs(t, err, ran)
			require.Equal(t, len(test.want), len(got))
			require.ElementsMatch(t, test.want, got)
			require.Contains(t, cmd.UsageString(), "to-callout [flags] [-- PROGRAM [ARGUMENT...]]")
		})
	}
}
