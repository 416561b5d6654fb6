// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
	"sigs.k8s.io/kpng/test/e2e/cluster"
)

// patience is for what a loaded machine may take long for; what has a bound of its own says so.
const patience = time.Minute

// podCIDRs are the pods', of both families.
const podCIDRs = "11.0.0.0/16,1100::/112"

// proxies under test.
type proxies uint8

const (
	kpngNFTables proxies = 1 << iota
	kpngIPTables
	kpngLegacy
	kubeProxyNFTables
	kubeProxyIPTables

	kubeProxy = kubeProxyNFTables | kubeProxyIPTables
)

var allProxies = []struct {
	proxies
	name string
	args func(dir string) []string
}{
	{kpngNFTables, "kpng nftables", kpng("--dataplane=nftables")},
	{kpngIPTables, "kpng iptables-nft", kpng("--dataplane=iptables", "--iptables-flavor=nft")},
	{kpngLegacy, "kpng iptables-legacy", kpng("--dataplane=iptables", "--iptables-flavor=legacy")},
	{kubeProxyNFTables, "kube-proxy nftables", kubeProxyIn("nftables")},
	{kubeProxyIPTables, "kube-proxy iptables", kubeProxyIn("iptables")},
}

func kpng(flags ...string) func(string) []string {
	return func(string) []string {
		return append([]string{
			kpngProgram(), "kube", "--kubeconfig=" + api.Kubeconfig, "to-local", "to-nat",
			"--node-name=n1", "--cluster-cidr=" + podCIDRs, "--healthz-listen=0.0.0.0:10256",
		}, flags...)
	}
}

func kubeProxyIn(mode string) func(string) []string {
	return func(dir string) []string {
		file := filepath.Join(dir, "config.yaml")
		text := fmt.Sprintf(kubeProxyConfig, mode, api.Kubeconfig, podCIDRs)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			panic(err)
		}
		return []string{filepath.Join(kubernetes, "kube-proxy"), "--config=" + file}
	}
}

// kubeProxyConfig: what is of the whole machine is left alone, and changes are written at once.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %q}
clusterCIDR: %q
hostnameOverride: n1
oomScoreAdj: 0
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 1ms, syncPeriod: 1h}
nftables: {minSyncPeriod: 1ms, syncPeriod: 1h}
`

// world is a network with a proxy on n1.
type world struct {
	*nstest.Lab
	proxy proxies
	name  string
	log   string
	ended chan struct{}
}

// newWorld starts a proxy in a network of its own, which has what these Services need of it; it lives as long as the test.
func newWorld(t *testing.T, p proxies, name string, args func(dir string) []string, services []*service) *world {
	t.Helper()
	w := &world{Lab: nstest.New(t, 3), proxy: p, name: name, ended: make(chan struct{})}
	for pod, port := range onlyServedBy {
		w.Host(pod).Serve(uint16(port))
	}
	for _, cidr := range []string{cluster.ServiceCIDR4, cluster.ServiceCIDR6} {
		p := netip.MustParsePrefix(cidr)
		w.Client.Route(p, w.Addr("n1", p.Addr().Is6()), "")
		w.Nodes[1].Route(p, w.Addr("n1", p.Addr().Is6()), "")
	}
	for _, s := range services {
		if s.onNode {
			w.own(t, s.loadBalancerIP)
		}
	}
	// What a proxy refuses in a burst is to be told, each time.
	w.Host("n1").Sysctl("net.ipv4.icmp_ratemask", "0")
	w.Host("n1").Sysctl("net.ipv6.icmp.ratemask", "0")
	w.relay(t, strings.TrimPrefix(api.URL, "https://"))

	dir := t.TempDir()
	w.log = filepath.Join(dir, "log")
	file, err := os.Create(w.log)
	require.NoError(t, err)
	defer file.Close()
	command := args(dir)
	cmd := w.Host("n1").Command(t.Context(), command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(dir, "xtables.lock")) // no other's, of other networks
	require.NoError(t, cmd.Start())
	go func() {
		defer close(w.ended)
		_ = cmd.Wait() // that it has ended is what counts
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-w.ended
		if t.Failed() {
			t.Log(w.lastWords())
		}
	})
	return w
}

// own gives n1 more addresses, which it does not use as its own when it talks to others.
func (w *world) own(t *testing.T, ips target) {
	t.Helper()
	links := w.Host("n1").Netlink()
	lo, err := links.LinkByName("lo")
	require.NoError(t, err)
	for _, f := range nstest.Families {
		addr, err := netlink.ParseAddr(nstest.Only(ips.ip(f)).String())
		require.NoError(t, err)
		if f.V6 {
			addr.ValidLft, addr.PreferedLft = math.MaxUint32, 0 // deprecated
		} else {
			addr.Scope = int(netlink.SCOPE_HOST)
		}
		require.NoError(t, links.AddrAdd(lo, addr))
	}
}

func (w *world) lastWords() string {
	text, err := os.ReadFile(w.log)
	if err != nil {
		return err.Error()
	}
	const enough = 4000
	return w.name + ":\n" + string(text[max(0, len(text)-enough):])
}

// relay makes the API server, on the loopback of this process's network, reachable at the same address on n1.
func (w *world) relay(t *testing.T, address string) {
	t.Helper()
	l, err := w.Host("n1").Listen("tcp", address)
	require.NoError(t, err)
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { relayed(ctx, near, address) })
		}
	})
	t.Cleanup(func() {
		stop()
		_ = l.Close()
		all.Wait()
	})
}

func relayed(ctx context.Context, near net.Conn, address string) {
	defer near.Close()
	far, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(far, near)
		_ = far.Close()
	})
	_, _ = io.Copy(near, far)
	_ = near.Close()
	back.Wait()
}
