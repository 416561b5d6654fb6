// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/test/e2e/cluster"
	"sigs.k8s.io/kpng/test/e2e/proc"
)

// pki is a CA with a certificate for the server and one for a client, in a folder of the test.
func pki(t *testing.T) (ca *cluster.CA, server, client cluster.Pair) {
	t.Helper()
	ca, err := cluster.NewCA(t.TempDir(), "ca")
	require.NoError(t, err)
	server, err = ca.Sign("server", nil, []string{"127.0.0.1", "localhost"})
	require.NoError(t, err)
	client, err = ca.Sign("client", nil, nil)
	require.NoError(t, err)
	return ca, server, client
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(web)
	s.slices("web", 2)
	ca, serverPair, clientPair := pki(t)
	_, _, stranger := pki(t)
	address := freeAddress(t)
	start(t, proc.Spec{Path: program("kpng"), Env: []string{"KUBECONFIG="}, Args: []string{
		"kube", "--kubeconfig", k8s.Kubeconfig, "--service-proxy-name", s.proxyName, "to-api", "--listen", "tcp://" + address,
		"--listen-tls-key", serverPair.Key, "--listen-tls-crt", serverPair.Cert, "--listen-tls-ca", ca.File,
	}})
	read := func(args ...string) result {
		return runToEnd(t, "kpng-json", append([]string{"--api", address, "--node-name", nodeA, "--once", "--timeout=2s"}, args...)...)
	}
	with := func(p cluster.Pair) []string {
		return []string{"--tls-key", p.Key, "--tls-crt", p.Cert, "--tls-ca", ca.File}
	}
	eventually(t, func() error {
		r := read(with(clientPair)...)
		items, err := parseItems(r.Stdout)
		if err == nil && summary(items) != dedent(s.expand(webState)) {
			return errNotYet
		}
		return err
	})
	for name, args := range map[string][]string{
		"plain text":            nil,
		"no client certificate": {"--tls-ca", ca.File},
		"another CA's client":   with(stranger),
	} {
		r := read(args...)
		require.NotZero(t, r.Code, name)
		require.Empty(t, r.Stdout, name)
		require.NotEmpty(t, r.Stderr, name)
	}
	// A server that another CA vouches for is refused by the client.
	otherCA, _, _ := pki(t)
	r := read("--tls-key", clientPair.Key, "--tls-crt", clientPair.Cert, "--tls-ca", otherCA.File)
	require.NotZero(t, r.Code)
	require.Contains(t, r.Stderr, "certificate")

	// A central kpng, fed over mTLS.
	onNode := kpng(t, append([]string{"api", "--api", address}, with(clientPair)...)...)
	s.wantState(onNode.API, nodeA, webState)
}

// TestCertificatesAreReloaded: renewed files are used without a restart.
func TestCertificatesAreReloaded(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	oldCA, oldServer, oldClient := pki(t)
	dir := t.TempDir()
	copyFile := func(from, to string) {
		data, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), data, 0o600))
	}
	install := func(ca *cluster.CA, pair cluster.Pair) {
		copyFile(ca.File, "ca.crt")
		copyFile(pair.Cert, "tls.crt")
		copyFile(pair.Key, "tls.key")
	}
	install(oldCA, oldServer)
	address := freeAddress(t)
	start(t, proc.Spec{Path: program("kpng"), Env: []string{"KUBECONFIG="}, Args: []string{
		"kube", "--kubeconfig", k8s.Kubeconfig, "--service-proxy-name", s.proxyName, "to-api", "--listen", "tcp://" + address,
		"--listen-tls-key", filepath.Join(dir, "tls.key"), "--listen-tls-crt", filepath.Join(dir, "tls.crt"), "--listen-tls-ca", filepath.Join(dir, "ca.crt"),
	}})
	accepted := func(ca *cluster.CA, client cluster.Pair) bool {
		return runToEnd(t, "kpng-json", "--api", address, "--once", "--timeout=3s",
			"--tls-key", client.Key, "--tls-crt", client.Cert, "--tls-ca", ca.File).Code == 0
	}
	accept := func(ca *cluster.CA, client cluster.Pair) {
		eventually(t, func() error {
			if !accepted(ca, client) {
				return errNotYet
			}
			return nil
		})
	}
	accept(oldCA, oldClient)
	newCA, newServer, newClient := pki(t)
	require.False(t, accepted(newCA, newClient))
	install(newCA, newServer)
	accept(newCA, newClient)
	require.False(t, accepted(oldCA, oldClient))
}
