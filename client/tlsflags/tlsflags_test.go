// SPDX-License-Identifier: Apache-2.0

package tlsflags_test

import (
	"crypto/tls"
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/client/tlsflags"
	"sigs.k8s.io/kpng/internal/localtest"
)

// handshake connects a client to a server, with what they have, and returns what either side has against it.
func handshake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			err = tls.Server(conn, server).Handshake()
		}
		served <- err
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	client = client.Clone()
	client.ServerName = "localhost"
	err = tls.Client(conn, client).Handshake()
	if err != nil {
		conn.Close()
	}
	return errors.Join(err, <-served)
}

func files(key, crt, ca string) *tlsflags.Flags {
	return &tlsflags.Flags{KeyFile: key, CertFile: crt, CAFile: ca}
}

func TestNoFilesNoTLS(t *testing.T) {
	for _, f := range []*tlsflags.Flags{nil, {}} {
		cfg, err := f.Load()
		require.NoError(t, err)
		require.Nil(t, cfg)
		require.Nil(t, f.Config())
		require.NoError(t, f.Validate())
	}
}

func TestHandshakes(t *testing.T) {
	ca, stranger := localtest.NewCA(t), localtest.NewCA(t)
	key, crt, caFile := ca.Write(t.TempDir(), "a")
	otherKey, otherCrt, otherCA := stranger.Write(t.TempDir(), "b")
	for _, tc := range []struct {
		name           string
		client, server *tlsflags.Flags
		refused        bool
	}{
		{name: "mutual", client: files(key, crt, caFile), server: files(key, crt, caFile)},
		{name: "the server only", client: files("", "", caFile), server: files(key, crt, "")},
		{name: "without a client certificate", client: files("", "", caFile), server: files(key, crt, caFile), refused: true},
		{name: "a strange client", client: files(otherKey, otherCrt, caFile), server: files(key, crt, caFile), refused: true},
		{name: "a strange server", client: files(key, crt, otherCA), server: files(key, crt, caFile), refused: true},
		{name: "no CA: the system's", client: files(key, crt, ""), server: files(key, crt, ""), refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, f := range []*tlsflags.Flags{tc.client, tc.server} {
				require.NoError(t, f.Validate())
			}
			err := handshake(t, tc.client.Config(), tc.server.Config())
			require.Equal(t, tc.refused, err != nil, "%v", err)
		})
	}
}

func TestRotatedFilesAreUsed(t *testing.T) {
	ca := localtest.NewCA(t)
	_, _, caFile := ca.Write(t.TempDir(), "ca")
	dir := t.TempDir()
	key, crt, _ := localtest.NewCA(t).Write(dir, "stranger")
	client, server := files("", "", caFile).Config(), files(key, crt, "").Config()
	require.Error(t, handshake(t, client, server))
	ca.Write(dir, "rotated")
	require.NoError(t, handshake(t, client, server))
	require.NoError(t, os.Remove(key))
	require.ErrorIs(t, handshake(t, client, server), os.ErrNotExist)
}

func TestBadFiles(t *testing.T) {
	ca := localtest.NewCA(t)
	dir := t.TempDir()
	key, crt, caFile := ca.Write(dir, "a")
	otherKey, _, _ := ca.Write(t.TempDir(), "b")
	junk := filepath.Join(dir, "junk")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o600))
	none := filepath.Join(dir, "none")

	good := files(key, crt, caFile)
	for _, tc := range []struct {
		name  string
		files *tlsflags.Flags
		want  []string
	}{
		{name: "no key", files: files("", crt, ""), want: []string{crt, "without its key"}},
		{name: "no certificate", files: files(key, "", ""), want: []string{key, "without its certificate"}},
		{name: "missing key", files: files(none, crt, caFile), want: []string{none, "no such file"}},
		{name: "junk certificate", files: files(key, junk, caFile), want: []string{junk}},
		{name: "another's key", files: files(otherKey, crt, caFile), want: []string{"does not match"}},
		{name: "missing CA", files: files(key, crt, none), want: []string{none, "no such file"}},
		{name: "junk CA", files: files(key, crt, junk), want: []string{junk, "no PEM certificate"}},
		{name: "everything", files: files(none, crt, junk), want: []string{none, junk}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := tc.files.Load()
			require.Equal(t, err, tc.files.Validate())
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
			// Config has no error to return: nothing may be reachable with what it returns.
			cfg := tc.files.Config()
			require.NotNil(t, cfg)
			require.Error(t, handshake(t, cfg, files(key, crt, "").Config()), "as a client of a server that asks for nothing")
			require.Error(t, handshake(t, cfg, good.Config()), "as a client")
			require.Error(t, handshake(t, good.Config(), cfg), "as a server")
		})
	}
}

func TestBind(t *testing.T) {
	goFlags := flag.NewFlagSet("", flag.ContinueOnError)
	f := tlsflags.Bind(goFlags)
	require.NoError(t, goFlags.Parse([]string{"-tls-key=k", "-tls-crt=c", "-tls-ca=a"}))
	require.Equal(t, files("k", "c", "a"), f)

	pFlags := pflag.NewFlagSet("", pflag.ContinueOnError)
	listen := tlsflags.Flags{}
	listen.Bind(pFlags, "listen-")
	require.NoError(t, pFlags.Parse([]string{"--listen-tls-key=k", "--listen-tls-crt=c", "--listen-tls-ca=a"}))
	require.Equal(t, *files("k", "c", "a"), listen)
}
