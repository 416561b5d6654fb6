// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/peer"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	. "sigs.k8s.io/kpng/internal/localtest"
)

// TestMain makes this binary one of the programs below, when told to.
func TestMain(m *testing.M) {
	if program := programs[os.Getenv("KPNG_TEST_PROGRAM")]; program != nil {
		program()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// programs are whole backends.
var programs = map[string]func(){
	"run": func() {
		client.Run(func(items []*client.ServiceEndpoints) { fmt.Println("all:", text(items)) })
	},
	"flags": func() {
		cfg, once, verbose := &localsink.Config{}, "", 0
		client.Run(func([]*client.ServiceEndpoints) { fmt.Println(cfg.NodeName, once, verbose) },
			cfg.BindFlags, // --node-name, which a Runner has too
			func(flags *pflag.FlagSet) { flags.StringVar(&once, "once", "true", "") },
			func(flags *pflag.FlagSet) { flags.CountVarP(&verbose, "verbose", "v", "") },
			func(flags *pflag.FlagSet) {
				if flags.Lookup("api") == nil {
					panic("a program cannot look at --api")
				}
			})
	},
	"changes": func() {
		client.RunChanges(func(list []client.Change) {
			for _, c := range list {
				fmt.Println(c.Op, c.Item.Service.NamespacedName())
			}
		})
	},
	"channel": func() {
		client.RunCh(func(ch <-chan *client.ServiceEndpoints) {
			for item := range ch {
				fmt.Println("item:", item.Service.Name)
			}
			klog.V(4).Info("verbose")
		})
	},
	"broken": func() {
		r := &client.Runner{}
		r.BindFlags(pflag.CommandLine)
		pflag.Parse()
		r.RunSink(&refusing{})
	},
}

// refusing is a sink that ends its client with an error.
type refusing struct{ fullstate.Sink }

func (*refusing) WaitRequest() (string, error) { return "", errors.New("no kernel\nno rules") }

type process struct {
	*exec.Cmd
	stdout, stderr safeBuffer
}

func program(t *testing.T, name string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	p := &process{Cmd: exec.CommandContext(ctx, os.Args[0], args...)}
	p.Env = append(os.Environ(), "KPNG_TEST_PROGRAM="+name)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

func TestProgramFollowsUntilSignalled(t *testing.T) {
	server := Start(t)
	server.Update(set("ns/a", "1.0.0.1"))
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := program(t, "run", "--api", server.Target(), "--error-delay=10ms")
		require.NoError(t, p.Start())
		require.Eventually(t, func() bool { return p.stdout.String() == "all: ns/a=1.0.0.1\n" }, deadline, tick)
		server.Stop()
		server.Listen()
		require.NoError(t, p.Process.Signal(sig))
		require.NoError(t, p.Wait(), "%s", p.stderr.String())
	}
}

func TestProgramOnce(t *testing.T) {
	server := Start(t)
	server.Update(set("ns/a"))
	host, err := os.Hostname()
	require.NoError(t, err)

	profile := filepath.Join(t.TempDir(), "cpu")
	for _, tc := range []struct {
		program, args, stdout, stderr string
	}{
		{program: "run", stdout: "all: ns/a=\n"},
		{program: "run", args: "--cpuprofile " + profile, stdout: "all: ns/a=\n"},
		{program: "changes", stdout: "set ns/a\n"},
		{program: "channel", stdout: "item: a\n"},
		{program: "channel", args: "-v=4", stdout: "item: a\n", stderr: "verbose"},
	} {
		p := program(t, tc.program, append(strings.Fields(tc.args), "--once", "--api="+server.Target())...)
		require.NoError(t, p.Run(), "%s", p.stderr.String())
		require.Equal(t, tc.stdout, p.stdout.String())
		require.Contains(t, p.stderr.String(), tc.stderr)
	}
	info, err := os.Stat(profile)
	require.NoError(t, err)
	require.NotZero(t, info.Size())
	for _, r := range server.Requests() {
		require.Equal(t, strings.ToLower(host), r.NodeName)
	}
}

// A program may have flags that a Runner has too: hers count, and ours follow.
func TestProgramWithFlagsOfItsOwn(t *testing.T) {
	server := Start(t)
	p := program(t, "flags", "--api="+server.Target(), "--node-name=n1", "--once=true", "-vv")
	require.NoError(t, p.Run(), "%s", p.stderr.String())
	require.Equal(t, "n1 true 2\n", p.stdout.String())
	require.Equal(t, "n1", server.Requests()[0].NodeName)
}

func TestProgramErrors(t *testing.T) {
	fine, server := Start(t), Start(t)
	server.Script(func(s Stream) error { <-s.Context().Done(); return nil }) // not in sync itself
	for _, tc := range []struct{ program, args, want string }{
		{program: "run", args: "--nope", want: "unknown flag: --nope"},
		{program: "run", args: "--error-delay=soon", want: "invalid argument"},
		{program: "run", args: "--tls-ca=/none", want: "/none: no such file"},
		{program: "run", args: "--tls-key=/none", want: "without its certificate"},
		{program: "run", args: "--cpuprofile=/none/cpu", want: "--cpuprofile"},
		{program: "run", args: "--once --timeout=300ms --error-delay=10ms --api=127.0.0.1:1", want: "no full state from 127.0.0.1:1 within 300ms"},
		{program: "run", args: "--once --timeout=300ms --api=" + server.Target(), want: "not in sync"},
		{program: "broken", args: "--api=" + fine.Target(), want: "no kernel; no rules"},
	} {
		t.Run(tc.args+tc.program, func(t *testing.T) {
			p := program(t, tc.program, strings.Fields(tc.args)...)
			err := p.Run()
			exit := &exec.ExitError{}
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode())
			require.Empty(t, p.stdout.String())
			lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
			last := lines[len(lines)-1]
			require.True(t, strings.HasPrefix(last, filepath.Base(os.Args[0])+": "), "%q", last)
			require.Contains(t, last, tc.want)
			for _, line := range lines[:len(lines)-1] {
				require.Regexp(t, `^[IE]\d{4} `, line, "only log lines before the error")
			}
		})
	}
}

func TestProgramHelp(t *testing.T) {
	p := program(t, "run", "--help")
	require.NoError(t, p.Run())
	for _, want := range []string{"backend", "--api", "--tls-ca", "--node-name", "--once", "--timeout", "--cpuprofile", "-v, --v"} {
		require.Contains(t, p.stdout.String(), want)
	}
}

func TestRunEndsWithContext(t *testing.T) {
	server := Start(t)
	server.Update(set("ns/a"))
	got := &calls{}
	r := newRunner(t, "--api="+server.Target())
	require.ErrorContains(t, r.Ready(), "no state yet")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, newSink(got)) }()
	got.wait(t, "ns/a=")
	require.Eventually(t, func() bool { return r.Ready() == nil }, deadline, tick)
	server.Stop()
	require.Eventually(t, func() bool { return r.Ready() != nil }, deadline, tick)
	require.ErrorContains(t, r.Ready(), "stale since")
	cancel()
	require.NoError(t, <-done)
}

func TestRunOnce(t *testing.T) {
	server := Start(t)
	got := &calls{}
	require.NoError(t, newRunner(t, "--once", "--api="+server.Target()).Run(t.Context(), newSink(got)))
	require.Equal(t, []string{""}, got.all())

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, newRunner(t, "--once", "--api=127.0.0.1:1").Run(ctx, newSink(got)), "stopped before")
}

func TestRunStops(t *testing.T) {
	server := Start(t)
	stop := changes.New(nil, func([]client.Change) error { return localsink.ErrStop })
	require.NoError(t, newRunner(t, "--api="+server.Target()).Run(t.Context(), stop))
	require.ErrorContains(t, newRunner(t, "--api="+server.Target()).Run(t.Context(), &refusing{}), "no kernel")
	require.NoError(t, (&client.Runner{}).Run(canceled(), stop), "without flags")
}

// cmd is a backend's command that works on for a while.
type cmd struct {
	got      calls
	finished []error
}

func (c *cmd) BindFlags(*pflag.FlagSet) {}
func (c *cmd) Sink() localsink.Sink     { return newSink(&c.got) }

func (c *cmd) Finish(ctx context.Context) error {
	c.finished = append(c.finished, ctx.Err())
	return errors.New("unfinished")
}

func TestRunCmd(t *testing.T) {
	server := Start(t)
	c := &cmd{}
	require.EqualError(t, newRunner(t, "--once", "--api="+server.Target()).RunCmd(t.Context(), c), "unfinished")
	require.Error(t, newRunner(t, "--api="+server.Target()).RunCmd(canceled(), c))
	require.Equal(t, []error{nil, context.Canceled}, c.finished)
}

func newRunner(t *testing.T, args ...string) *client.Runner {
	t.Helper()
	r := &client.Runner{}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	r.BindFlags(fs)
	require.NoError(t, fs.Parse(append(args, "--error-delay=10ms")))
	return r
}

func newSink(got *calls) localsink.Sink {
	sink := fullstate.New(nil)
	sink.Callback = client.ArrayBackend(func(items []*client.ServiceEndpoints) { got.add(text(items)) })
	return sink
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func peerOf(ctx context.Context) (string, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", false
	}
	return p.Addr.String(), true
}

// safeBuffer may be read while a process writes to it.
type safeBuffer struct {
	c calls
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.c.add(string(bytes.Clone(p)))
	return len(p), nil
}

func (b *safeBuffer) String() string { return strings.Join(b.c.all(), "") }

func TestRunRefusesValuesThatCannotBeMeant(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	r := &client.Runner{}
	r.BindFlags(flags)
	require.NoError(t, flags.Parse([]string{"--error-delay=-1s", "--max-msg-size=-1", "--timeout=-1s"}))
	err := r.Run(t.Context(), fullstate.New(&localsink.Config{}))
	require.ErrorContains(t, err, "--error-delay -1s")
	require.ErrorContains(t, err, "--max-msg-size -1")
	require.ErrorContains(t, err, "--timeout -1s")
}
