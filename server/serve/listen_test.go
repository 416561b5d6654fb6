// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/tls"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"sigs.k8s.io/kpng/internal/localtest"
	"sigs.k8s.io/kpng/server/store"
)

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   string // empty: valid
	}{
		{"loopback", func(*Config) {}, ""},
		{"IPv6 loopback", func(c *Config) { c.Listen = []string{"tcp://[::1]:0"} }, ""},
		{"localhost", func(c *Config) { c.Listen = []string{"tcp://localhost:0"} }, ""},
		{"unix", func(c *Config) { c.Listen = []string{"unix:///run/x"} }, ""},
		{"all interfaces", func(c *Config) { c.Listen = []string{"tcp://:12090"} }, "give --listen-tls-key and --listen-tls-crt"},
		{"another address", func(c *Config) { c.Listen = []string{"tcp://192.0.2.1:1"} }, "--listen-insecure"},
		{"another address, allowed", func(c *Config) { c.Listen, c.ListenInsecure = []string{"tcp://192.0.2.1:1"}, true }, ""},
		{"no scheme", func(c *Config) { c.Listen = []string{"127.0.0.1:12090"} }, "want tcp://HOST:PORT or unix:///PATH"},
		{"other scheme", func(c *Config) { c.Listen = []string{"udp://127.0.0.1:1"} }, "want tcp://HOST:PORT or unix:///PATH"},
		{"no port", func(c *Config) { c.Listen = []string{"tcp://127.0.0.1"} }, "want tcp://HOST:PORT"},
		{"no path", func(c *Config) { c.Listen = []string{"unix://"} }, "nothing follows unix://"},
		{"nowhere", func(c *Config) { c.Listen = nil }, "no address given"},
		{"key only", func(c *Config) { c.tls.key = "k" }, "go together"},
		{"CA only", func(c *Config) { c.tls.ca = "k" }, "go together"},
		{"nothing to serve", func(c *Config) { c.Local, c.Global = false, false }, "nothing to serve"},
		{"no watchers", func(c *Config) { c.MaxWatchers = 0 }, "--max-watchers 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := &Config{Listen: []string{"tcp://127.0.0.1:0"}, Local: true, Global: true, MaxWatchers: 1}
			tt.change(config)
			err := config.Validate()
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}

func TestUnixSocket(t *testing.T) {
	listen := func(path string) (net.Listener, error) {
		return address{network: "unix", at: path}.listen(context.Background())
	}
	path := filepath.Join(t.TempDir(), "s")

	l, err := listen(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o660), info.Mode().Perm())

	_, err = listen(path)
	require.ErrorContains(t, err, "another process is listening there")

	l.(*net.UnixListener).SetUnlinkOnClose(false) // as when the process is killed
	require.NoError(t, l.Close())
	l, err = listen(path)
	require.NoError(t, err, "a stale socket is replaced")
	require.NoError(t, l.Close())

	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	_, err = listen(path)
	require.ErrorContains(t, err, "not a socket")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))

	_, err = listen(filepath.Join(t.TempDir(), "none", "s"))
	require.ErrorContains(t, err, "no such file or directory")
}

func TestRunFailsWhenItCannotListen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	other := filepath.Join(t.TempDir(), "s")
	server, err := New(&Config{
		Listen: []string{"unix://" + other, "tcp://" + taken.Addr().String()}, Local: true, MaxWatchers: 1,
	}, store.New())
	require.NoError(t, err)
	require.ErrorContains(t, server.Run(t.Context()), "address already in use")
	require.NoFileExists(t, other, "the listener that could be opened is closed again")
}

func writeFile(t *testing.T, path string, content []byte) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func TestMutualTLS(t *testing.T) {
	ours, theirs := localtest.NewCA(t), localtest.NewCA(t)
	dir := t.TempDir()
	var files tlsFiles
	files.key, files.cert, files.ca = ours.Write(dir, "server")
	st := store.New()
	st.Update(func(tx *store.Tx) { tx.SetSynced() })
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := free.Addr().String()
	require.NoError(t, free.Close())
	run(t, &Config{Listen: []string{"tcp://" + at}, Local: true, Global: true, MaxWatchers: 10, tls: files}, st)

	try := func(config *tls.Config) error {
		return watchGlobal(t, at, true, grpc.WithTransportCredentials(credentials.NewTLS(config))).next()
	}
	with := func(ca *localtest.CA) []tls.Certificate {
		key, cert, _ := ca.Write(t.TempDir(), "client")
		pair, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		return []tls.Certificate{pair}
	}
	require.NoError(t, try(&tls.Config{RootCAs: ours.Pool(), Certificates: with(ours)}))
	require.Error(t, try(&tls.Config{RootCAs: ours.Pool()}), "no client certificate")
	require.Error(t, try(&tls.Config{RootCAs: ours.Pool(), Certificates: with(theirs)}), "a certificate of another CA")
	require.Error(t, try(&tls.Config{RootCAs: theirs.Pool(), Certificates: with(ours)}), "the client does not trust the server")
	require.Error(t, watchGlobal(t, at, true).next(), "plain text")

	// The files are replaced by those of another authority, at first by garbage.
	later := time.Now().Add(time.Second)
	writeFile(t, files.cert, []byte("garbage"))
	require.NoError(t, os.Chtimes(files.cert, later, later))
	require.NoError(t, try(&tls.Config{RootCAs: ours.Pool(), Certificates: with(ours)}), "the last good files go on being used")
	theirs.Write(dir, "server")
	require.NoError(t, try(&tls.Config{RootCAs: theirs.Pool(), Certificates: with(theirs)}))
	require.Error(t, try(&tls.Config{RootCAs: theirs.Pool(), Certificates: with(ours)}))
}

func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	keyFile, crtFile, _ := localtest.NewCA(t).Write(dir, "server")
	garbage := writeFile(t, filepath.Join(dir, "garbage"), []byte("garbage"))
	for name, tt := range map[string]struct {
		files tlsFiles
		want  string
	}{
		"no certificate":      {tlsFiles{key: keyFile, cert: filepath.Join(dir, "none")}, "--listen-tls-crt"},
		"garbage certificate": {tlsFiles{key: keyFile, cert: garbage}, "--listen-tls-crt"},
		"no CA":               {tlsFiles{key: keyFile, cert: crtFile, ca: filepath.Join(dir, "none")}, "--listen-tls-ca"},
		"garbage CA":          {tlsFiles{key: keyFile, cert: crtFile, ca: garbage}, "holds no PEM certificate"},
	} {
		_, err := New(&Config{Listen: []string{"tcp://127.0.0.1:0"}, Local: true, MaxWatchers: 1, tls: tt.files}, store.New())
		require.ErrorContains(t, err, tt.want, name)
	}
}
