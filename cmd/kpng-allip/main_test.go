// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/internal/localtest"
	"sigs.k8s.io/kpng/internal/netlab"
)

// TestMain lets the tests run the program itself: this test binary is it, when told so.
func TestMain(m *testing.M) {
	if os.Getenv("KPNG_TEST_PROGRAM") != "" {
		main()
		return
	}
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

const patience = time.Minute

// world is a cluster whose node n2 runs the program, fed by a server.
type world struct {
	t       *testing.T
	cluster *netlab.Cluster
	node    *netlab.Node
	server  *localtest.Server
	vip     [2]netip.Addr
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, cluster: netlab.ForTest(t).Cluster(),
		server: localtest.Start(t, localtest.Unix(filepath.Join(t.TempDir(), "kpng.sock"))),
		vip:    [2]netip.Addr{netip.MustParseAddr("10.0.0.55"), netip.MustParseAddr("1000::55")},
	}
	w.node = w.cluster.Nodes[1]
	for _, n := range w.cluster.Nodes {
		for _, pod := range n.Pods {
			pod.Serve(80, 6000)
		}
	}
	for _, vip := range w.vip {
		w.cluster.Client.Route(netip.PrefixFrom(vip, vip.BitLen()), w.node.Addr(vip.Is6()), "")
	}
	w.set(w.node.Pods[0])
	return w
}

// set makes pods on n2 the endpoints of the one service.
func (w *world) set(pods ...*netlab.Host) {
	w.server.Update(func(s localtest.State) {
		s.Delete("default/web")
		svc := localtest.Service("default/web", "172.30.0.1", 80)
		svc.IPs.ExternalIPs = localv1.NewIPSet(w.vip[0].String(), w.vip[1].String())
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

func (w *world) program(args ...string) (*netlab.Cmd, *bytes.Buffer) {
	args = append([]string{"--node-name=n2", "--api=" + w.server.Target()}, args...)
	cmd := w.node.Command(w.t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "KPNG_TEST_PROGRAM=1")
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

// ask probes every family, port and protocol from the client; it returns who answered, or the first error.
func (w *world) ask() (string, error) {
	answers := map[string]bool{}
	for _, vip := range w.vip {
		for _, p := range []netlab.Probe{{Network: "tcp", To: netip.AddrPortFrom(vip, 80)}, {Network: "tcp", To: netip.AddrPortFrom(vip, 6000)},
			{Network: "udp", To: netip.AddrPortFrom(vip, 6000), Size: 1000}, {Network: "icmp", To: netip.AddrPortFrom(vip, 0), Size: 56}} {
			answer, err := w.cluster.Client.Probe(w.t.Context(), p)
			if err != nil {
				return "", err
			}
			if answer.Client.Addr() != w.cluster.Client.Addr(vip.Is6()) {
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
	w.t.Helper()
	var last error
	require.Eventually(w.t, func() bool {
		got, err := w.ask()
		last = err
		return err == nil && got == host
	}, patience, 20*time.Millisecond, "%s: %v", why, last)
}

// rules are all of the program's, of either kind.
func (w *world) rules() string {
	w.t.Helper()
	var all strings.Builder
	for _, tool := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		out, err := w.node.Command(w.t.Context(), tool).Output()
		require.NoError(w.t, err)
		all.Write(out)
	}
	out, err := w.node.Command(w.t.Context(), "nft", "list", "ruleset").Output()
	require.NoError(w.t, err)
	all.Write(out)
	var own strings.Builder
	for line := range strings.Lines(all.String()) {
		if strings.Contains(strings.ToLower(line), "kpng-allip") {
			own.WriteString(line)
		}
	}
	return own.String()
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
			cmd, stderr := w.program("--iptables-flavor=" + flavor)
			require.NoError(t, cmd.Start())
			w.requireAnswer("n2-a", "start")
			w.set(w.node.Pods[1])
			w.requireAnswer("n2-b", "change")

			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			w.requireAnswer("n2-b", "the rules stay")
			require.Contains(t, stderr.String(), "CVE-2020-8554")
			w.set(w.node.Pods[0])
			cmd, _ = w.program("--dataplane=nftables")
			require.NoError(t, cmd.Start())
			w.requireAnswer("n2-a", "what changed meanwhile, in the other dataplane")
			require.Eventually(t, func() bool { return !strings.Contains(w.rules(), "KPNG-ALLIP") }, patience, 20*time.Millisecond,
				"nothing is left of the first dataplane")
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait())
			require.NotEmpty(t, w.rules())

			cmd, stderr = w.program("--cleanup")
			require.NoError(t, cmd.Run(), stderr.String())
			require.Empty(t, w.rules())
		})
	}
}

// TestFixedPort: a client of UDP that keeps its port, and never is silent for long, follows the endpoints.
func TestFixedPort(t *testing.T) {
	w := newWorld(t)
	cmd, _ := w.program()
	require.NoError(t, cmd.Start())
	for i, vip := range w.vip {
		w.set(w.node.Pods[0])
		for _, step := range [][]*netlab.Host{{w.node.Pods[0]}, {w.node.Pods[1]}, {}, {w.node.Pods[0]}} {
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
				answer, err := w.cluster.Client.Probe(ctx, netlab.Probe{Network: "udp", To: netip.AddrPortFrom(vip, 6000),
					From: netip.AddrPortFrom(netip.Addr{}, uint16(5555+i)), Size: 100})
				return answer.Host == want && (err == nil) == (want != "")
			}, patience, 10*time.Millisecond, "%s: %q", vip, want)
		}
	}
}

func TestCleanupOnExit(t *testing.T) {
	w := newWorld(t)
	cmd, stderr := w.program("--cleanup-on-exit", "--allow-cidrs=10.0.0.0/8,1000::/16")
	require.NoError(t, cmd.Start())
	w.requireAnswer("n2-a", "start")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), stderr.String())
	require.Empty(t, w.rules())
	require.NotContains(t, stderr.String(), "CVE-2020-8554")
}

func TestDryRun(t *testing.T) {
	w := newWorld(t)
	cmd, _ := w.program("--dry-run")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "-d 1000::55/128")
	require.Contains(t, string(out), "-j DNAT --to-destination 1100::202")
	require.Empty(t, w.rules())
}

// TestNodeAddress: an address is served while it is none of the node's.
func TestNodeAddress(t *testing.T) {
	w := newWorld(t)
	cmd, _ := w.program()
	require.NoError(t, cmd.Start())
	served := func() bool { return strings.Contains(w.rules(), "-d 10.0.0.55/32") }
	require.Eventually(t, served, patience, 20*time.Millisecond)
	run := func(args ...string) {
		out, err := w.node.Command(t.Context(), "ip", args...).CombinedOutput()
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
	cmd, stderr := w.program("--once")
	require.NoError(t, cmd.Run(), stderr.String())
	w.requireAnswer("n2-a", "--once ends with the rules written")

	w.node.Sysctl("net.ipv4.ip_forward", "0")
	cmd, stderr = w.program("--once")
	require.Error(t, cmd.Run())
	require.Contains(t, stderr.String(), "kpng-allip: net.ipv4.ip_forward is 0")
	cmd, stderr = w.program("--once", "--set-sysctls")
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
