// SPDX-License-Identifier: Apache-2.0

// Package python_test runs the backend in Python as kpng-callout does, on a stream of its own.
package python_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/callout"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/internal/localtest"
)

const patience = time.Minute

// program is the path of the backend. A machine without Python fails the tests, rather than skipping them unnoticed.
func program(t *testing.T) string {
	t.Helper()
	_, err := exec.LookPath("python3")
	require.NoError(t, err, "this test needs Python 3 (Debian: apt-get install python3)")
	path, err := filepath.Abs("kpng-hosts")
	require.NoError(t, err)
	return path
}

// follow runs the backend with kpng-callout's command until the test ends.
func follow(t *testing.T, server *localtest.Server, args ...string) {
	t.Helper()
	backend, runner := callout.New(), &client.Runner{}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	backend.BindFlags(flags)
	runner.BindFlags(flags)
	require.NoError(t, flags.Parse([]string{"--node-name=n1", "--api=" + server.Target()}))
	require.NoError(t, backend.SetArgs(append([]string{program(t)}, args...)))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runner.RunCmd(ctx, backend) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
}

func requireFile(t *testing.T, path string, lines ...string) {
	t.Helper()
	want := strings.Join(append(lines, ""), "\n")
	var got []byte
	require.Eventually(t, func() bool {
		got, _ = os.ReadFile(path)
		return got != nil && string(got) == want
	}, patience, 10*time.Millisecond, "want:\n%s", want)
}

func TestFollowsTheState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services")
	require.NoError(t, os.WriteFile(file, []byte("left by an earlier life\n"), 0o644))
	server := localtest.Start(t)
	follow(t, server, "--domain=example", file)
	requireFile(t, file)

	server.Update(func(s localtest.State) {
		s.SetService(localtest.Service("shop/web", "10.96.0.10", 80))
		s.SetEndpoint("shop/web", "a", localtest.Endpoint("11.0.2.2"))
		db := localtest.Service("shop/db", "", 5432)
		db.IPs = &localv1.ServiceIPs{Headless: true}
		s.SetService(db)
		for key, ip := range map[string]string{"a": "11.0.2.3", "b": "1100::203"} {
			ep := localtest.Endpoint(ip)
			ep.Hostname = "db-0"
			s.SetEndpoint("shop/db", key, ep)
		}
		s.SetEndpoint("shop/db", "c", localtest.Endpoint("11.0.2.4"))
		away := localtest.Endpoint("11.0.2.5")
		away.Scopes = &localv1.EndpointScopes{External: true}
		s.SetEndpoint("shop/db", "d", away)
	})
	requireFile(t, file,
		"10.96.0.10 web.shop.svc.example web.shop",
		"11.0.2.3 db.shop.svc.example db.shop db-0.db.shop.svc.example",
		"11.0.2.4 db.shop.svc.example db.shop",
		"1100::203 db.shop.svc.example db.shop db-0.db.shop.svc.example",
	)

	server.Update(func(s localtest.State) {
		s.Delete("shop/db")
		s.SetService(localtest.Service("shop/web", "fd00::10", 80))
	})
	requireFile(t, file, "fd00::10 web.shop.svc.example web.shop")

	server.Update(func(s localtest.State) { s.Delete("shop/web") })
	requireFile(t, file)
}

// run runs the backend once.
func run(t *testing.T, input string, env []string, args ...string) (stderr string, status int) {
	t.Helper()
	cmd := exec.Command(program(t), args...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), env...)
	var said strings.Builder
	cmd.Stderr = &said
	_ = cmd.Run()
	require.NotNil(t, cmd.ProcessState)
	return said.String(), cmd.ProcessState.ExitCode()
}

const web = `{"Service":{"Namespace":"shop","Name":"web","IPs":{"ClusterIPs":{"V4":["10.96.0.10"]}}}}` + "\n"

func TestWhatIsNotUnderstoodChangesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services")
	_, status := run(t, web, nil, file)
	require.Zero(t, status)
	for name, test := range map[string]struct{ input, env string }{
		"no JSON":                {"garbage\n", ""},
		"bytes that are no text": {"\xff\xfe\n", ""},
		"a line cut":             {web + web[:30], ""},
		"lines cut":              {web, "KPNG_ITEMS=2"},
		"not an item":            {"[]\n", ""},
		"null":                   {"null\n", ""},
		"no name":                {`{"Service":{}}`, ""},
		"no address":             {strings.Replace(web, "10.96.0.10", "10.96.0.10\\n6.6.6.6 bank", 1), ""},
		"another type":           {strings.Replace(web, `["10.96.0.10"]`, "5", 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			stderr, status := run(t, test.input, []string{test.env}, file)
			require.Equal(t, 1, status, stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), "one line, no trace: %s", stderr)
			require.Contains(t, stderr, "stays as it is")
			requireFile(t, file, "10.96.0.10 web.shop.svc.cluster.local web.shop")
		})
	}
}

func TestCannotWrite(t *testing.T) {
	stderr, status := run(t, web, nil, filepath.Join(t.TempDir(), "no-such-folder", "services"))
	require.Equal(t, 1, status)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.Contains(t, stderr, "no-such-folder")
}

func TestHostileNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services")
	input := web
	for _, name := range []string{"web\\n6.6.6.6 bank", "a b", "#", "..", "-", "ü", strings.Repeat("x", 64)} {
		input += strings.Replace(web, `"web"`, `"`+name+`"`, 1) + strings.Replace(web, `"shop"`, `"`+name+`"`, 1)
	}
	stderr, status := run(t, input, nil, file)
	require.Zero(t, status, stderr)
	requireFile(t, file, "10.96.0.10 web.shop.svc.cluster.local web.shop")
}

func TestReplacesTheFileOnlyWhenItDiffers(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "services")
	stat := func() os.FileInfo {
		info, err := os.Stat(file)
		require.NoError(t, err)
		return info
	}
	_, status := run(t, web, nil, file)
	require.Zero(t, status)
	first := stat()
	require.Equal(t, os.FileMode(0o644), first.Mode())
	_, status = run(t, web, nil, file)
	require.Zero(t, status)
	require.True(t, os.SameFile(first, stat()))
	_, status = run(t, "", nil, file)
	require.Zero(t, status)
	require.False(t, os.SameFile(first, stat()), "a reader of the old file is not disturbed")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}
