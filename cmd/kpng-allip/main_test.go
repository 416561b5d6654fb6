// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/internal/localtest"
	"sigs.k8s.io/kpng/internal/netlab"
	"sigs.k8s.io/kpng/internal/proxytest"
)

func TestMain(m *testing.M) { proxytest.Main(m, main) }

const patience = proxytest.Patience

var vips = []netip.Addr{netip.MustParseAddr("10.0.0.55"), netip.MustParseAddr("1000::55")}

type world struct{ *proxytest.World }

func newWorld(t *testing.T) *world {
	w := &world{proxytest.NewWorld(t, []uint16{80, 6000}, vips...)}
	w.set(w.Node.Pods[0])
	return w
}

// set makes pods on n2 the endpoints of the one service.
func (w *world) set(pods ...*netlab.Host) {
	w.Server.Update(func(s localtest.State) {
		s.Delete("default/web")
		svc := localtest.Service("default/web", "172.30.0.1", 80)
		svc.IPs.ExternalIPs = localv1.NewIPSet(vips[0].String(), vips[1].String())
		s.SetService(svc)
		for _, pod := range pods {
			for _, v6 := range []bool{false, true} {
				ep := localtest.Endpoint(pod.Addr(v6).String())
				ep.Local = true
				s.SetEndpoint("default/web", pod.Addr(v6).String(), ep)
			}
		}
	})
}

// ask probes every family, port and protocol from the client; it returns who answered, or the first error.
func (w *world) ask() (string, error) {
	answers := map[string]bool{}
	for _, vip := range vips {
		for _, p := range []netlab.Probe{{Network: "tcp", To: netip.AddrPortFrom(vip, 80)}, {Network: "tcp", To: netip.AddrPortFrom(vip, 6000)},
			{Network: "udp", To: netip.AddrPortFrom(vip, 6000), Size: 1000}, {Network: "icmp", To: netip.AddrPortFrom(vip, 0), Size: 56}} {
			answer, err := w.Cluster.Client.Probe(w.T.Context(), p)
			if err != nil {
				return "", err
			}
			if answer.Client.Addr() != w.Cluster.Client.Addr(vip.Is6()) {
				return "", fmt.Errorf("%s: client seen as %s", p.Network, answer.Client)
			}
			answers[answer.Host] = true
		}
	}
	if len(answers) != 1 {
		return "", fmt.Errorf("several answered: %v", answers)
	}
	for host := range answers {
		return host, nil
	}
	return "", nil
}

func (w *world) requireAnswer(host, why string) {
	w.T.Helper()
	var last error
	require.Eventually(w.T, func() bool {
		got, err := w.ask()
		last = err
		return err == nil && got == host
	}, patience, 20*time.Millisecond, "%s: %v", why, last)
}

// rules are all of the program's, of either kind.
func (w *world) rules() string {
	w.T.Helper()
	return w.Rules("kpng-allip")
}

// TestEveryPacket: all of an address goes to the pod, follows a change, outlives kill -9, goes over to the other
// dataplane, and is gone with --cleanup.
func TestEveryPacket(t *testing.T) {
	for _, flavor := range []string{"nft", "legacy"} {
		t.Run(flavor, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("iptables-" + flavor); err != nil {
				t.Skip(err)
			}
			w := newWorld(t)
			cmd, stderr := w.Program("--iptables-flavor=" + flavor)
			require.NoError(t, cmd.Start())
			w.requireAnswer("n2-a", "start")
			w.set(w.Node.Pods[1])
			w.requireAnswer("n2-b", "change")

			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			w.requireAnswer("n2-b", "the rules stay")
			require.Contains(t, stderr.String(), "CVE-2020-8554")
			w.set(w.Node.Pods[0])
			cmd, _ = w.Program("--dataplane=nftables")
			require.NoError(t, cmd.Start())
			w.requireAnswer("n2-a", "what changed meanwhile, in the other dataplane")
			require.Eventually(t, func() bool { return !strings.Contains(w.rules(), "KPNG-ALLIP") }, patience, 20*time.Millisecond,
				"nothing is left of the first dataplane")
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait())
			require.NotEmpty(t, w.rules())

			cmd, stderr = w.Program("--cleanup")
			require.NoError(t, cmd.Run(), stderr.String())
			require.Empty(t, w.rules())
		})
	}
}

// TestFixedPort: a client of UDP that keeps its port, and never is silent for long, follows the endpoints.
func TestFixedPort(t *testing.T) {
	w := newWorld(t)
	cmd, _ := w.Program()
	require.NoError(t, cmd.Start())
	for i, vip := range vips {
		w.set(w.Node.Pods[0])
		for _, step := range [][]*netlab.Host{{w.Node.Pods[0]}, {w.Node.Pods[1]}, {}, {w.Node.Pods[0]}} {
			w.set(step...)
			want := ""
			if len(step) != 0 {
				want = step[0].Name
			} else {
				require.Eventually(t, func() bool { return !strings.Contains(w.rules(), "-d "+vip.String()) }, patience, 10*time.Millisecond)
			}
			require.Eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				answer, err := w.Cluster.Client.Probe(ctx, netlab.Probe{Network: "udp", To: netip.AddrPortFrom(vip, 6000),
					From: netip.AddrPortFrom(netip.Addr{}, uint16(5555+i)), Size: 100})
				return answer.Host == want && (err == nil) == (want != "")
			}, patience, 10*time.Millisecond, "%s: %q", vip, want)
		}
	}
}

func TestCleanupOnExit(t *testing.T) {
	w := newWorld(t)
	cmd, stderr := w.Program("--cleanup-on-exit", "--allow-cidrs=10.0.0.0/8,1000::/16")
	require.NoError(t, cmd.Start())
	w.requireAnswer("n2-a", "start")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), stderr.String())
	require.Empty(t, w.rules())
	require.NotContains(t, stderr.String(), "CVE-2020-8554")
}

func TestDryRun(t *testing.T) {
	w := newWorld(t)
	cmd, _ := w.Program("--dry-run")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "-d 1000::55/128")
	require.Contains(t, string(out), "-j DNAT --to-destination 1100::202")
	require.Empty(t, w.rules())
}

// TestNodeAddress: an address is served while it is none of the node's.
func TestNodeAddress(t *testing.T) {
	w := newWorld(t)
	cmd, _ := w.Program()
	require.NoError(t, cmd.Start())
	served := func() bool { return strings.Contains(w.rules(), "-d 10.0.0.55/32") }
	require.Eventually(t, served, patience, 20*time.Millisecond)
	run := func(args ...string) {
		out, err := w.Node.Command(t.Context(), "ip", args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	run("addr", "add", "10.0.0.55/32", "dev", "lo")
	require.Eventually(t, func() bool { return !served() }, patience, 20*time.Millisecond)
	require.Contains(t, w.rules(), "-d 1000::55/128")
	run("addr", "del", "10.0.0.55/32", "dev", "lo")
	require.Eventually(t, served, patience, 20*time.Millisecond)
}

func TestOnceAndForwarding(t *testing.T) {
	w := newWorld(t)
	cmd, stderr := w.Program("--once")
	require.NoError(t, cmd.Run(), stderr.String())
	w.requireAnswer("n2-a", "--once ends with the rules written")

	w.Node.Sysctl("net.ipv4.ip_forward", "0")
	cmd, stderr = w.Program("--once")
	require.Error(t, cmd.Run())
	require.Contains(t, stderr.String(), "kpng-allip: net.ipv4.ip_forward is 0")
	cmd, stderr = w.Program("--once", "--set-sysctls")
	require.NoError(t, cmd.Run(), stderr.String())
	w.requireAnswer("n2-a", "forwarding is on again")
}

func TestFaults(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--scope=x", "--dataplane=y", "--log-format=z")
	cmd.Env = append(os.Environ(), "KPNG_TEST_PROGRAM=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	for _, want := range []string{"--scope=x", "--dataplane=y", "--log-format"} {
		require.Contains(t, string(out), want)
	}
	require.Equal(t, 1, strings.Count(strings.TrimSpace(string(out)), "\n")+1)
}
