// SPDX-License-Identifier: Apache-2.0

//go:build linux

package deploy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

// TestMigrate goes the way of nat/README.md from kube-proxy and back on one node, while a client opens connection after connection
// to a cluster IP: none may fail.
func TestMigrate(t *testing.T) {
	kubeProxy, err := filepath.Abs(filepath.Join("..", ".cache", "bin", "kube-proxy"))
	require.NoError(t, err)
	if _, err := os.Stat(kubeProxy); err != nil {
		t.Skip("no kube-proxy: `make kubernetes` builds one")
	}
	bin := t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin+"/", "../cmd/kpng").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, mode := range []string{"iptables", "nftables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const dir = "nat/instead-of-kube-proxy"
			c := netlab.ForTest(t).Cluster(netlab.NodeSpec{Name: nodeName, Pods: []string{"pod"}})
			node, pod := c.Nodes[0].Host, c.Nodes[0].Pods[0]
			pod.Serve(8080)
			clusterIP := netip.MustParseAddrPort("10.96.0.10:80")
			c.Client.Route(netip.PrefixFrom(clusterIP.Addr(), 32), node.Addr(false), "")
			k := newKubelet(t, node, bin)
			k.endpoints["10"] = pod.Addr(false).String()
			config := kubeProxyConfig(t, k, mode)

			theirs := k.startProgram(kubeProxy, "--config="+config)
			user := newUser(t, c.Client, clusterIP)
			require.NoError(t, theirs.Process.Signal(syscall.SIGTERM))
			_ = theirs.Wait() // it ends by the signal, which is an error to Go
			user.goesOn("kube-proxy has ended")

			objects := build(t, onTop(t, dir, "apiserver-host=127.0.0.1", "apiserver-port=6443", "cluster-cidr=10.244.0.0/16"))
			ours := daemonSet(t, objects).Spec.Template.Spec.Containers[0]
			k.env["KUBERNETES_SERVICE_HOST"] = "10.96.0.1"
			ours.Args = append(ours.Args, "--cleanup-on-exit")
			running := k.start(ours, objects)
			k.isUp(ours.ReadinessProbe)
			// With the rights of `kubectl debug --profile=netadmin`.
			out, err := node.Command(t.Context(), "setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--inh-caps=-all", kubeProxy, "--cleanup").CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.False(t, hasKubeProxysRules(t, node))
			user.goesOn("kube-proxy's rules are gone")

			k.startProgram(kubeProxy, "--config="+config)
			require.Eventually(t, func() bool { return hasKubeProxysRules(t, node) }, 60*time.Second, 100*time.Millisecond)
			user.goesOn("kube-proxy is back, beside ours")
			require.NoError(t, running.Process.Signal(syscall.SIGTERM))
			require.NoError(t, running.Wait())
			user.goesOn("ours is gone")
			k.isUp(ours.LivenessProbe) // kube-proxy takes its ports
		})
	}
}

func kubeProxyConfig(t *testing.T, k *kubelet, mode string) string {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", certificate-authority: %q}}]
users: [{name: u, user: {token: %q}}]
`, filepath.Join(k.dir, "token", "ca.crt"), token)
	// What is of the whole machine is left alone.
	config := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %q}
clusterCIDR: 10.244.0.0/16
hostnameOverride: %s
oomScoreAdj: 0
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, mode, filepath.Join(dir, "kubeconfig"), nodeName)
	for name, text := range map[string]string{"kubeconfig": kubeconfig, "config": config} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "config")
}

// hasKubeProxysRules tells whether kube-proxy has rules for the service's endpoint, in whichever mode.
func hasKubeProxysRules(t *testing.T, node *netlab.Host) bool {
	out, err := node.Command(t.Context(), "nft", "list", "ruleset", "ip").CombinedOutput() // iptables is iptables-nft
	require.NoError(t, err, "%s", out)
	return strings.Contains(string(out), "KUBE-SEP-") || strings.Contains(string(out), "table ip kube-proxy") && strings.Contains(string(out), "default/plain")
}

// startProgram starts a program that is no container of ours; it ends with the test at the latest.
func (k *kubelet) startProgram(name string, args ...string) *netlab.Cmd {
	cmd := k.host.Command(k.t.Context(), name, args...)
	k.run(cmd, filepath.Base(name))
	return cmd
}

// user opens connection after connection.
type user struct {
	t      *testing.T
	mu     sync.Mutex
	served int
	failed []error
}

// newUser waits until a service is served first.
func newUser(t *testing.T, host *netlab.Host, to netip.AddrPort) *user {
	ctx, stop := context.WithCancel(t.Context())
	u, ended := &user{t: t}, make(chan struct{})
	probe := func() error {
		_, err := host.Probe(ctx, netlab.Probe{Network: "tcp", To: to, Size: 16})
		return err
	}
	require.Eventually(t, func() bool { return probe() == nil }, 60*time.Second, 100*time.Millisecond)
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			err := probe()
			u.mu.Lock()
			if err == nil {
				u.served++
			} else if ctx.Err() == nil {
				u.failed = append(u.failed, err)
			}
			u.mu.Unlock()
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return u
}

// goesOn waits for another hundred connections, and fails the test if one has failed.
func (u *user) goesOn(since string) {
	u.t.Helper()
	look := func() (int, []error) {
		u.mu.Lock()
		defer u.mu.Unlock()
		return u.served, u.failed
	}
	before, _ := look()
	require.Eventually(u.t, func() bool {
		served, failed := look()
		return served >= before+100 || len(failed) > 0
	}, 30*time.Second, 10*time.Millisecond, since)
	_, failed := look()
	require.Empty(u.t, failed, since)
}
