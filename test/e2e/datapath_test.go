// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
	"sigs.k8s.io/kpng/test/e2e/cluster"
	"sigs.k8s.io/kpng/test/e2e/proc"
)

// TestMainJob is what kpng is for: a Service in a real API server makes a real kernel send what comes for its external
// IPs to the pod on the node. kpng watches the API server; kpng-callout runs the example script in the network
// namespace of a node; a client outside asks.
func TestMainJob(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	require.NoError(t, netlab.Privileged(), "the test process is root in its own namespaces")
	lab := netlab.ForTest(t)
	net := lab.Cluster()
	node, here, there := net.Nodes[0], net.Nodes[0].Pods[0], net.Nodes[1].Pods[0]
	here.Serve(6000, 7000)
	there.Serve(6000, 7000)
	external := []netip.Addr{netip.MustParseAddr("10.0.0.55"), netip.MustParseAddr("1000::55")}
	for _, ip := range external {
		net.Client.Route(netip.PrefixFrom(ip, ip.BitLen()), node.Addr(ip.Is6()), "")
	}
	for i, host := range []*netlab.Host{here, there} {
		var ips []string
		for _, ip := range host.Addrs() {
			ips = append(ips, ip.String())
		}
		require.NoError(t, k8s.AddPod(t.Context(), cluster.Pod{
			Namespace: s.namespace, Name: fmt.Sprintf("alpine-%d", i), Node: []string{nodeA, nodeB}[i],
			Labels: map[string]string{"app": "kpng-alpine"}, IPs: ips,
		}))
	}
	answered := func(ip netip.Addr, network string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		answer, err := net.Client.Probe(ctx, netlab.Probe{Network: network, To: netip.AddrPortFrom(ip, 6000), Size: 100})
		switch {
		case err != nil:
			return fmt.Errorf("%s to %s: %w", network, ip, err)
		case answer.Host != here.Name:
			return fmt.Errorf("%s to %s: answered by %s", network, ip, answer.Host)
		case answer.Client.Addr() != net.Client.Addr(ip.Is6()):
			return fmt.Errorf("%s to %s: the pod saw %s instead of the client", network, ip, answer.Client)
		}
		return nil
	}
	each := func(check func(ip netip.Addr, network string)) {
		for _, ip := range external {
			for _, network := range []string{"tcp", "udp", "icmp"} {
				check(ip, network)
			}
		}
	}
	for _, ip := range external {
		require.Error(t, answered(ip, "tcp"), "before")
	}

	app := readFile(t, "examples", "pipe-exec", "manifests", "kpng-example-app.yaml")
	s.apply(strings.ReplaceAll(app, "service-proxy-name: kpng-example", "service-proxy-name: "+s.proxyName))
	k := s.kube()

	// In the node, as a pod of a DaemonSet in the host's network would be. The unix socket crosses namespaces.
	// It ends after the test's context, by a signal.
	callout := node.Command(context.WithoutCancel(t.Context()), program("kpng-callout"), "--api", k.API, "--node-name", nodeA, "--error-delay=100ms")
	callout.Env = append(os.Environ(), "CALLOUT="+filepath.Join(repo, "examples/pipe-exec/scripts/kpng-example-allip"))
	out := &proc.Buffer{}
	callout.Stdout, callout.Stderr = out, out
	require.NoError(t, callout.Start())
	t.Cleanup(func() {
		_ = callout.Process.Signal(syscall.SIGTERM)
		if err := callout.Wait(); err != nil || t.Failed() {
			t.Errorf("kpng-callout: %v\n%s", err, out)
		}
	})

	each(func(ip netip.Addr, network string) { eventually(t, func() error { return answered(ip, network) }) })

	// The rules are in the node, and only there: kpng programs what it was given.
	k.restart(t)
	each(func(ip netip.Addr, network string) { eventually(t, func() error { return answered(ip, network) }) })

	// The pod goes: so does the rule, and no one answers any more.
	require.NoError(t, k8s.DeletePod(t.Context(), s.namespace, "alpine-0", false))
	each(func(ip netip.Addr, network string) {
		eventually(t, func() error {
			if err := answered(ip, network); err == nil {
				return fmt.Errorf("%s to %s is still answered", network, ip)
			}
			return nil
		})
	})
}
