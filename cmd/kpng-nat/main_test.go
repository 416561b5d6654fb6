// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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
	"sigs.k8s.io/kpng/internal/proxytest"
)

func TestMain(m *testing.M) { proxytest.Main(m, main) }

// The one service: port 80 of these addresses and a node port, which pods serve at their port 8080.
var vips = []netip.Addr{netip.MustParseAddr("10.0.0.55"), netip.MustParseAddr("1000::55")}

const (
	nodePort   = 30080
	healthPort = 32000
	owner      = "kpng-nat"
)

// dataplanes are the flags for each.
var dataplanes = map[string][]string{
	"nftables":        {"--dataplane=nftables"},
	"iptables-nft":    {"--dataplane=iptables", "--iptables-flavor=nft"},
	"iptables-legacy": {"--dataplane=iptables", "--iptables-flavor=legacy"},
}

// eachDataplane runs a test for those that this machine has.
func eachDataplane(t *testing.T, test func(t *testing.T, w *world, flags []string)) {
	for name, flags := range dataplanes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tool, _, iptables := strings.Cut(name, "-"); iptables {
				if _, err := exec.LookPath(name); err != nil {
					t.Skipf("no %s of this flavor: %v", tool, err)
				}
			}
			test(t, newWorld(t), flags)
		})
	}
}

type world struct{ *proxytest.World }

func newWorld(t *testing.T) *world {
	w := &world{proxytest.NewWorld(t, []uint16{8080}, vips...)}
	w.set(w.Node.Pods[0])
	return w
}

// set makes pods the endpoints.
func (w *world) set(pods ...*netlab.Host) { w.setService(nil, pods...) }

func (w *world) setService(change func(*localv1.Service), pods ...*netlab.Host) {
	svc := localtest.Service("default/web", vips[0].String(), 80)
	svc.IPs.ClusterIPs = localv1.NewIPSet(vips[0].String(), vips[1].String())
	svc.Ports[0].TargetPort, svc.Ports[0].NodePort = 8080, nodePort
	svc.Ports = append(svc.Ports, &localv1.PortMapping{Protocol: localv1.Protocol_UDP, Port: 80, TargetPort: 8080, NodePort: nodePort})
	if change != nil {
		change(svc)
	}
	w.Server.Update(func(s localtest.State) {
		s.Delete("default/web")
		s.SetService(svc)
		for _, pod := range pods {
			for _, v6 := range []bool{false, true} {
				ep := localtest.Endpoint(pod.Addr(v6).String())
				ep.Local = strings.HasPrefix(pod.Name, "n2")
				s.SetEndpoint("default/web", pod.Addr(v6).String(), ep)
			}
		}
	})
}

// ask asks for everything that is served, in both families; it returns who answered, or the first error.
func (w *world) ask() (string, error) {
	host := ""
	for _, vip := range vips {
		for _, to := range []netip.AddrPort{netip.AddrPortFrom(vip, 80), netip.AddrPortFrom(w.Node.Addr(vip.Is6()), nodePort)} {
			for _, network := range []string{"tcp", "udp"} {
				ctx, cancel := context.WithTimeout(w.T.Context(), time.Second)
				a, err := w.Cluster.Client.Probe(ctx, netlab.Probe{Network: network, To: to, Size: 100})
				cancel()
				switch {
				case err != nil:
					return "", err
				case host != "" && host != a.Host:
					return "", fmt.Errorf("%s %s: answer of %s, and of %s before", network, to, a.Host, host)
				}
				host = a.Host
			}
		}
	}
	return host, nil
}

func (w *world) requireAnswer(pod *netlab.Host, why string) {
	w.T.Helper()
	var host string
	var err error
	require.Eventually(w.T, func() bool {
		host, err = w.ask()
		return err == nil && host == pod.Name
	}, proxytest.Patience, 20*time.Millisecond, "%s: want %s, got %s, %v", why, pod.Name, &host, &err)
}

func (w *world) kill(cmd *netlab.Cmd) {
	require.NoError(w.T, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
}

func (w *world) end(cmd *netlab.Cmd) {
	require.NoError(w.T, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(w.T, cmd.Wait())
}

// TestLife: it serves, follows changes, leaves its rules when killed and when told to end, takes up what changed meanwhile,
// and takes all away with --cleanup.
func TestLife(t *testing.T) {
	eachDataplane(t, func(t *testing.T, w *world, flags []string) {
		before := w.Ruleset()
		pods := w.Node.Pods
		cmd := w.Start(flags...)
		w.requireAnswer(pods[0], "start")
		w.set(pods[1])
		w.requireAnswer(pods[1], "a change")
		w.kill(cmd)
		w.requireAnswer(pods[1], "the rules stay after kill -9")

		w.set(pods[0])
		cmd = w.Start(flags...)
		w.requireAnswer(pods[0], "what changed meanwhile")
		w.end(cmd)
		w.requireAnswer(pods[0], "the rules stay after a signal")

		cmd, stderr := w.Program("--cleanup")
		require.NoError(t, cmd.Run(), stderr)
		require.Empty(t, w.Rules(owner))
		require.NotContains(t, w.Ruleset(), "to-destination")
		if strings.Contains(flags[0], "nftables") {
			require.Equal(t, before, w.Ruleset())
		}
	})
}

func TestCleanupOnExit(t *testing.T) {
	eachDataplane(t, func(t *testing.T, w *world, flags []string) {
		cmd := w.Start(append(flags, "--cleanup-on-exit")...)
		w.requireAnswer(w.Node.Pods[0], "start")
		require.NotEmpty(t, w.Rules(owner))
		w.end(cmd)
		require.Empty(t, w.Rules(owner))
	})
}

func TestDryRun(t *testing.T) {
	eachDataplane(t, func(t *testing.T, w *world, flags []string) {
		before := w.Ruleset()
		cmd, stderr := w.Program(append(flags, "--dry-run")...)
		out, err := cmd.Output()
		require.NoError(t, err, stderr)
		for _, want := range []string{"10.0.0.55", "1000::55", "11.0.2.2", "1100::202", "30080", "default/web"} {
			require.Contains(t, string(out), want)
		}
		require.Equal(t, before, w.Ruleset())
	})
}

// TestNothingIsLost: an open connection and new questions do not notice that the program is killed, started again, and
// started with other dataplanes.
func TestNothingIsLost(t *testing.T) {
	for i, vip := range vips {
		t.Run(vip.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			order := [][]string{dataplanes["nftables"], dataplanes["nftables"], dataplanes["iptables-nft"], dataplanes["iptables-nft"], dataplanes["nftables"]}
			if i == 1 {
				order = append(order, dataplanes["iptables-legacy"], dataplanes["nftables"])
			}
			cmd := w.Start(order[0]...)
			w.requireAnswer(w.Node.Pods[0], "start")
			load := proxytest.StartLoad(t, w.Cluster.Client, netip.AddrPortFrom(vip, 80))
			const aWhile = 200
			for _, flags := range order[1:] {
				load.Run(aWhile)
				w.kill(cmd)
				load.Run(aWhile)
				cmd = w.Start(append(flags, "--metrics-listen=127.0.0.1:10249")...)
				w.requireReady(cmd)
				load.Run(aWhile)
			}
			load.RequireNothingLost()
			w.end(cmd)
		})
	}
}

// requireReady waits until the program says that the kernel has all.
func (w *world) requireReady(cmd *netlab.Cmd) {
	w.T.Helper()
	require.Eventually(w.T, func() bool {
		resp, err := w.get(w.Node.Host, "http://127.0.0.1:10249/readyz")
		return err == nil && resp.status == http.StatusOK
	}, proxytest.Patience, 10*time.Millisecond, "process %d", cmd.Process.Pid)
}

type page struct {
	status int
	body   string
}

// get asks from a host.
func (w *world) get(from *netlab.Host, url string) (page, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(w.T.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return page{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return page{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return page{resp.StatusCode, string(body)}, err
}

// TestPages are those that others ask a node's kube-proxy for.
func TestPages(t *testing.T) {
	w := newWorld(t)
	w.Start("--healthz-listen=0.0.0.0:10256", "--metrics-listen=0.0.0.0:10249")
	w.requireAnswer(w.Node.Pods[0], "start")
	url := func(port int, path string) string {
		return fmt.Sprintf("http://%s:%d%s", w.Node.Addr(false), port, path)
	}
	ask := func(url string) page {
		t.Helper()
		p, err := w.get(w.Cluster.Client, url)
		require.NoError(t, err)
		return p
	}
	for _, path := range []string{"/healthz", "/livez"} { // healthy, once it knows that what is served is served
		require.Eventually(t, func() bool { return ask(url(10256, path)).status == http.StatusOK }, proxytest.Patience, 10*time.Millisecond)
		require.Contains(t, ask(url(10256, path)).body, `"healthy": true`)
	}
	require.Equal(t, page{http.StatusOK, "nftables"}, ask(url(10249, "/proxyMode")))
	require.Contains(t, ask(url(10249, "/metrics")).body, "kpng_nat_")

	// The health check node port of a service comes and goes with its policy.
	check := url(healthPort, "/")
	_, err := w.get(w.Cluster.Client, check)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	local := func(svc *localv1.Service) {
		svc.ExternalTrafficToLocal, svc.HealthCheckNodePort = true, healthPort
	}
	count := func(want int) func() bool {
		return func() bool {
			p, err := w.get(w.Cluster.Client, check)
			var answer struct{ LocalEndpoints int }
			return err == nil && json.Unmarshal([]byte(p.body), &answer) == nil &&
				answer.LocalEndpoints == want && (p.status == http.StatusOK) == (want > 0)
		}
	}
	w.setService(local, w.Node.Pods...)
	require.Eventually(t, count(2), proxytest.Patience, 10*time.Millisecond)
	w.setService(local, w.Cluster.Nodes[0].Pods...)
	require.Eventually(t, count(0), proxytest.Patience, 10*time.Millisecond)
	w.set(w.Node.Pods[0])
	require.Eventually(t, func() bool { _, err := w.get(w.Cluster.Client, check); return err != nil }, proxytest.Patience, 10*time.Millisecond)
}

// TestNotRoot: NET_ADMIN and NET_RAW are all it needs; the legacy iptables also a lock file that it may write.
func TestNotRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	eachDataplane(t, func(t *testing.T, w *world, flags []string) {
		// The folders of a test, and of the test binary, are root's alone.
		for dir := filepath.Dir(w.Socket); dir != os.TempDir(); dir = filepath.Dir(dir) {
			require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // for nobody
		}
		require.NoError(t, os.Chmod(w.Socket, 0o777)) //nolint:gosec // for nobody
		cmd, stderr := w.Program(flags...)
		cmd.Path = "/proc/self/exe"
		cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+filepath.Join("/tmp", fmt.Sprintf("kpng-nat-test-%d.lock", os.Getpid())))
		const nobody, netAdmin, netRaw = 65534, 12, 13
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		cmd.SysProcAttr.AmbientCaps = []uintptr{netAdmin, netRaw}
		require.NoError(t, cmd.Start())
		w.requireAnswer(w.Node.Pods[0], "start")
		w.set(w.Node.Pods[1])
		w.requireAnswer(w.Node.Pods[1], "a change")
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		require.NoError(t, err)
		require.Contains(t, string(status), "Uid:\t65534\t65534")
		require.Contains(t, string(status), "CapEff:\t0000000000003000")
		w.end(cmd)
		require.NotContains(t, stderr.String(), "permitted")
	})
}

// TestFaults: every wrong flag is named, in one line, before anything is done.
func TestFaults(t *testing.T) {
	cmd := exec.Command(os.Args[0], "--cluster-cidr=x", "--nodeport-addresses=y", "--healthz-listen=z", "--dataplane=d", "--iptables-flavor=f", "--dry-run", "--cleanup")
	cmd.Env = append(os.Environ(), "KPNG_TEST_PROGRAM=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	for _, want := range []string{"--cluster-cidr", "--nodeport-addresses", "--healthz-listen=z", "--dataplane=d", "--iptables-flavor", "--dry-run, --cleanup"} {
		require.Contains(t, string(out), want)
	}
	require.Equal(t, 1, strings.Count(strings.TrimSpace(string(out)), "\n")+1)
}
