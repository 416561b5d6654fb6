// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
)

// TestMain lets the tests run a small program made with Execute: this test binary itself.
func TestMain(m *testing.M) {
	if os.Getenv("KPNG_TEST_PROGRAM") == "" {
		os.Exit(m.Run())
	}
	root := &cobra.Command{Use: "prog"}
	root.AddCommand(
		&cobra.Command{Use: "fail", RunE: func(*cobra.Command, []string) error {
			return errors.Join(errors.New("--a: bad"), errors.New("--b: bad"))
		}},
		&cobra.Command{Use: "wait", RunE: func(cmd *cobra.Command, _ []string) error {
			_, _ = os.Stdout.WriteString("waiting\n")
			<-cmd.Context().Done()
			return nil
		}},
		&cobra.Command{Use: "log", RunE: func(cmd *cobra.Command, _ []string) error {
			klog.InfoS("always", "object", named{"ns", "name"})
			klog.V(2).InfoS("two")
			klog.FromContext(cmd.Context()).V(5).Info("five, by a library")
			return nil
		}})
	new(Options).BindFlags(root.PersistentFlags())
	Execute(root)
}

// named is a value that is only readable by its method.
type named struct{ namespace, name string }

func (n named) String() string { return n.namespace + "/" + n.name }

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "KPNG_TEST_PROGRAM=1")
	return cmd
}

func TestErrorsAreOneLine(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"fail", "prog fail: --a: bad; --b: bad\n"},
		{"", "prog: a subcommand is missing: completion, fail, log, version, wait (see --help)\n"},
		{"nonsense", "prog: unknown subcommand \"nonsense\": want completion, fail, log, version, wait (see --help)\n"},
		{"fail --nonsense", "prog fail: unknown flag: --nonsense\n"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			cmd := program(t, strings.Fields(tt.args)...)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit)
			require.Equal(t, 1, exit.ExitCode())
			require.Equal(t, tt.want, stderr.String())
			require.Empty(t, stdout.String())
		})
	}
}

// Who reads the log as JSON reads the last line so too.
func TestErrorsAreJSONWhenTheLogIs(t *testing.T) {
	for args, want := range map[string][2]string{
		"fail --log-format=json":            {"prog fail", "--a: bad; --b: bad"},
		"fail --log-format=json --nonsense": {"prog fail", "unknown flag: --nonsense"},
		"--log-format=json":                 {"prog", "a subcommand is missing: completion, fail, log, version, wait (see --help)"},
	} {
		cmd := program(t, strings.Fields(args)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Run(), &exit)
		var line struct{ Level, Msg, Command, Err string }
		require.NoError(t, json.Unmarshal(stderr.Bytes(), &line), "%s: one object and nothing else: %s", args, &stderr)
		require.Equal(t, "ERROR", line.Level)
		require.Equal(t, want, [2]string{line.Command, line.Err})
	}
}

// -v counts in both formats, also for what libraries log, and every line is what was asked for, from the first on.
func TestVerbosity(t *testing.T) {
	for args, want := range map[string][]string{
		"":     {"always"},
		"-v=2": {"always", "two"},
		"-v=5": {"always", "two", "five, by a library"},
	} {
		for _, format := range []string{"text", "json"} {
			cmd := program(t, append(strings.Fields(args), "log", "--log-format="+format)...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			require.NoError(t, cmd.Run())
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			require.Len(t, lines, len(want), "%s %s: %s", format, args, &stderr)
			require.Contains(t, lines[0], `"ns/name"`)
			for i, line := range lines {
				require.Contains(t, line, want[i])
				require.Equal(t, format == "json", json.Valid([]byte(line)), line)
			}
		}
	}
}

func TestSignalEndsCleanly(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		cmd := program(t, "wait")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line := make([]byte, len("waiting\n"))
		_, err = io.ReadFull(out, line)
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(sig))
		require.NoError(t, cmd.Wait())
	}
}

func TestVersion(t *testing.T) {
	out, err := program(t, "version").Output()
	require.NoError(t, err)
	require.Regexp(t, `^prog \S.* go1\.\S+ \w+/\w+\n$`, string(out))
}

func TestMetricsAndHealth(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := l.Addr().String()
	require.NoError(t, l.Close())

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	notReady := errors.New("stale: since noon")
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kpng_test"})
	options := Options{LogFormat: "text", MetricsListen: at, Pprof: true}
	require.NoError(t, options.Start(ctx, func() error { return notReady }, gauge))

	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + at + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	status, body := get("/metrics")
	require.Equal(t, 200, status)
	require.Contains(t, body, "kpng_test 0")
	require.Contains(t, body, "kpng_build_info{")
	status, body = get("/readyz")
	require.Equal(t, 503, status)
	require.Equal(t, "stale: since noon\n", body)
	notReady = nil
	status, _ = get("/readyz")
	require.Equal(t, 200, status)
	status, _ = get("/debug/pprof/cmdline")
	require.Equal(t, 200, status)

	require.Error(t, options.Start(ctx, nil), "the address is taken")
	cancel()
	require.Eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", at, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 5*time.Second, 10*time.Millisecond)
}

func TestValidate(t *testing.T) {
	bad := Options{LogFormat: "xml", Pprof: true}
	err := bad.Validate()
	require.ErrorContains(t, err, "--log-format")
	require.ErrorContains(t, err, "--pprof needs --metrics-listen")
	bad = Options{LogFormat: "json", MetricsListen: "nonsense"}
	require.ErrorContains(t, bad.Validate(), "--metrics-listen")
}
