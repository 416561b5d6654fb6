// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"context"
	"errors"
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
	"go.uber.org/goleak"
)

// childEnv makes the test binary be one of the programs that tests start.
const childEnv = "KPNG_NETLAB_TEST_CHILD"

func TestMain(m *testing.M) {
	if err := EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if role := os.Getenv(childEnv); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// child builds a lab, starts a program in it, tells what it made, and hangs until it is killed.
func child(role string) {
	l := New()
	h := l.Host("h")
	sleep := h.Command(context.Background(), "sleep", "600")
	if err := errors.Join(l.Err(), sleep.Start()); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	ns, err := os.Readlink(h.Path())
	fmt.Println(ns, sleep.Process.Pid, role, err)
	select {}
}

func TestClusterAnswers(t *testing.T) {
	t.Parallel()
	c := ForTest(t).Cluster()
	n, pod, far := c.Nodes[0], c.Nodes[0].Pods[0], c.Nodes[1].Pods[1]
	for _, h := range []*Host{n.Host, pod, far} {
		h.Serve(6000, 53)
	}
	require.Equal(t, "11.0.1.2", pod.Addr(false).String())
	require.Equal(t, "1100::102", pod.Addr(true).String())
	require.Equal(t, "1100::203", far.Addr(true).String())
	require.Equal(t, "172.31.0.100", c.Client.Addr(false).String())
	require.Equal(t, "fd31::100", c.Client.Addr(true).String())

	for _, v6 := range []bool{false, true} {
		for _, network := range []string{"tcp", "udp", "icmp"} {
			for _, path := range []struct{ from, to *Host }{{pod, far}, {c.Client, n.Host}, {far, far}, {n.Host, pod}} {
				from := path.from.Addr(v6)
				name := fmt.Sprintf("%s %s to %s v6=%v", network, path.from.Name, path.to.Name, v6)
				for _, size := range []int{0, 4000} {
					a, err := path.from.Probe(t.Context(), Probe{Network: network, To: netip.AddrPortFrom(path.to.Addr(v6), 6000), Size: size})
					require.NoError(t, err, name)
					require.Equal(t, path.to.Name, a.Host, name)
					require.Equal(t, from, a.Client.Addr(), name)
				}
			}
		}
	}
}

func TestProbeFrom(t *testing.T) {
	t.Parallel()
	c := ForTest(t).Cluster()
	n := c.Nodes[0]
	n.Serve(7)
	for _, network := range []string{"tcp", "udp"} {
		for range 2 { // a fixed port must be free again at once
			a, err := n.Pods[0].Probe(t.Context(), Probe{Network: network, From: netip.AddrPortFrom(netip.Addr{}, 4444), To: netip.AddrPortFrom(n.Addr(true), 7)})
			if network == "tcp" && errors.Is(err, syscall.EADDRINUSE) {
				continue // TIME_WAIT
			}
			require.NoError(t, err)
			require.Equal(t, netip.AddrPortFrom(n.Pods[0].Addr(true), 4444), a.Client)
		}
	}
}

// What must not be taken for an answer.
func TestProbeFailures(t *testing.T) {
	t.Parallel()
	c := ForTest(t).Cluster()
	pod, mute := c.Nodes[0].Pods[0], c.Nodes[1].Pods[0]
	for _, network := range []string{"tcp", "udp"} {
		_, err := pod.Probe(t.Context(), Probe{Network: network, To: netip.AddrPortFrom(mute.Addr(false), 6000)})
		require.ErrorIs(t, err, syscall.ECONNREFUSED, network)
		require.NotErrorIs(t, err, ErrNoAnswer)
	}
	// A listener that says nothing.
	ln, err := mute.Listen("tcp", netip.AddrPortFrom(mute.Addr(true), 6000).String())
	require.NoError(t, err)
	defer ln.Close()
	pc, err := mute.ListenPacket("udp", netip.AddrPortFrom(mute.Addr(true), 6000).String())
	require.NoError(t, err)
	defer pc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for _, network := range []string{"tcp", "udp", "icmp"} {
		_, err := pod.Probe(ctx, Probe{Network: network, To: netip.AddrPortFrom(mute.Addr(true), 6000)})
		require.ErrorIs(t, err, ErrNoAnswer, network)
	}
	_, err = c.Client.Probe(t.Context(), Probe{Network: "udp", To: netip.MustParseAddrPort("10.0.0.55:6000")})
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	_, err = c.Client.Probe(t.Context(), Probe{Network: "sctp"})
	require.ErrorContains(t, err, `network "sctp"`)
}

func TestCommandRunsInside(t *testing.T) {
	t.Parallel()
	l := ForTest(t)
	a, b := l.Host("a"), l.Host("b")
	l.Link(End{Host: a, Name: "cable-a"}, End{Host: b, Name: "cable-b"})
	for _, tc := range []struct {
		h        *Host
		has, not string
	}{{a, "cable-a", "cable-b"}, {b, "cable-b", "cable-a"}} {
		out, err := tc.h.Command(t.Context(), "cat", "/proc/self/net/dev").Output()
		require.NoError(t, err)
		require.Contains(t, string(out), tc.has)
		require.NotContains(t, string(out), tc.not)
	}
	_, err := a.Command(t.Context(), "sh", "-c", "echo oops >&2; exit 3").Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.ExitCode())
	require.Equal(t, "oops\n", string(exit.Stderr))
	out, err := a.Command(t.Context(), "sh", "-c", "echo 1; echo 2 >&2").CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "1\n2\n", string(out))
}

func TestSysctlStaysInside(t *testing.T) {
	t.Parallel()
	l := ForTest(t)
	a, b := l.Router("a"), l.Host("b")
	const key = "/proc/sys/net/ipv4/ip_forward"
	read := func(h *Host) (s string) {
		require.NoError(t, h.Do(func() error {
			out, err := os.ReadFile(key)
			s = strings.TrimSpace(string(out))
			return err
		}))
		return s
	}
	before, err := os.ReadFile(key)
	require.NoError(t, err)
	require.Equal(t, "1", read(a))
	require.Equal(t, "0", read(b))
	a.Sysctl("net.ipv4.ip_forward", "0")
	b.Sysctl("net.ipv4.ip_forward", "1")
	require.Equal(t, "0", read(a))
	require.Equal(t, "1", read(b))
	after, err := os.ReadFile(key)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
}

func TestFirstErrorIsKept(t *testing.T) {
	t.Parallel()
	requirePrivilege(t)
	l := New()
	defer l.Close()
	h := l.Host("h")
	require.NoError(t, l.Err())
	h.Sysctl("kernel.panic", "1")
	require.ErrorContains(t, l.Err(), "kernel.panic is not a network setting")
	first := l.Err()
	other := l.Host("other")
	h.DefaultRoute(netip.MustParseAddr("10.0.0.1"), "")
	l.Link(End{Host: h, Name: "x"}, End{Host: other, Name: "y"})
	require.Equal(t, first, l.Err())
	require.Equal(t, first, other.Do(func() error { return nil }))
	require.Equal(t, first, other.Command(t.Context(), "true").Run())

	for what, broken := range map[string]func(*Lab){
		"sysctl net.ipv4.nothing=1": func(l *Lab) { l.Host("h").Sysctl("net.ipv4.nothing", "1") },
		"route 10.0.0.0/8 via 10.0.0.1": func(l *Lab) {
			l.Host("h").Route(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParseAddr("10.0.0.1"), "")
		},
		"link h:x - h:interface-name-too-long: ": func(l *Lab) {
			h := l.Host("h")
			l.Link(End{Host: h, Name: "x"}, End{Host: h, Name: "interface-name-too-long"})
		},
		"10 nodes: at most 9":                      func(l *Lab) { l.Cluster(make([]NodeSpec, 10)...) },
		"serving on h: listen tcp [fe::1]:1: bind": func(l *Lab) { h := l.Host("h"); h.addrs = append(h.addrs, netip.MustParseAddr("fe::1")); h.Serve(1) },
	} {
		l := New()
		broken(l)
		require.ErrorContains(t, l.Err(), what)
		l.Close()
	}
}

// Labs do not see each other, though all their names and addresses are the same.
func TestLabsInParallel(t *testing.T) {
	t.Parallel()
	requirePrivilege(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			l := New()
			defer l.Close()
			c := l.Cluster()
			pod := c.Nodes[1].Pods[0]
			pod.Name = fmt.Sprintf("pod-of-lab-%d", i)
			pod.Serve(80)
			if err := l.Err(); err != nil {
				t.Error(err)
				return
			}
			for _, v6 := range []bool{false, true} {
				a, err := c.Nodes[0].Pods[0].Probe(t.Context(), Probe{Network: "tcp", To: netip.AddrPortFrom(pod.Addr(v6), 80)})
				if err != nil || a.Host != pod.Name {
					t.Errorf("lab %d: %v %v", i, a, err)
				}
			}
		})
	}
	wg.Wait()
}

// Not parallel: it counts what the process holds.
func TestCloseLeavesNothing(t *testing.T) {
	requirePrivilege(t)
	run := func() (ns []string, cmd *Cmd) {
		l := New()
		c := l.Cluster()
		pod := c.Nodes[0].Pods[0]
		pod.Serve(80, 81)
		require.NoError(t, l.Err())
		cmd = pod.Command(context.Background(), "sleep", "600")
		require.NoError(t, cmd.Start())
		conn, err := c.Nodes[1].Pods[0].Dial(t.Context(), "tcp", netip.AddrPortFrom(pod.Addr(true), 80).String())
		require.NoError(t, err)
		defer conn.Close()
		for _, h := range l.hosts {
			id, err := os.Readlink(h.Path())
			require.NoError(t, err)
			ns = append(ns, id)
		}
		l.Close()
		l.Close()
		require.ErrorIs(t, pod.Do(func() error { return nil }), ErrClosed)
		require.ErrorIs(t, pod.Command(context.Background(), "true").Run(), ErrClosed)
		pod.Serve(80)
		require.ErrorIs(t, l.Err(), ErrClosed)
		return ns, cmd
	}
	_, cmd := run() // the first time Go opens files of its own
	require.Error(t, cmd.Wait())
	fds := openFiles(t)
	ns, cmd := run()
	require.Len(t, ns, 8)
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
	require.Equal(t, fds, openFiles(t))
	for _, id := range ns {
		requireGone(t, id)
	}
	goleak.VerifyNone(t)
}

func TestKill9LeavesNothing(t *testing.T) {
	requirePrivilege(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=hang")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var ns, pid, role, none string
	_, err = fmt.Fscanln(stdout, &ns, &pid, &role, &none)
	require.NoError(t, err)
	require.Equal(t, "<nil>", none)
	require.Contains(t, holders(t), ns)
	require.NoError(t, syscall.Kill(cmd.Process.Pid, syscall.SIGKILL))
	require.Error(t, cmd.Wait())
	requireGone(t, ns)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, 10*time.Second, 10*time.Millisecond, "sleep is still there")
}

// Where the test runs as root, it also runs once as a user who is nobody.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 || os.Getenv(reexecEnv) != "" {
		t.Skip("is not root itself, so all other tests are this one")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	exe := filepath.Join(worldReadableDir(t), "netlab.test")
	data, err := os.ReadFile(self)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(exe, data, 0o755))
	const nobody = 65534
	cmd := exec.Command(exe, "-test.run=^(TestClusterAnswers|TestCloseLeavesNothing|TestSysctlStaysInside)$", "-test.v")
	cmd.Dir = filepath.Dir(exe)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "a user namespace could not be made") {
		t.Skipf("%s", out)
	}
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "SKIP")
	require.Contains(t, string(out), "PASS: TestClusterAnswers")
}

func worldReadableDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "netlab")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

func requirePrivilege(t *testing.T) {
	t.Helper()
	if err := Privileged(); err != nil {
		t.Skip(err)
	}
}

func openFiles(t *testing.T) []string {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var files []string
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			files = append(files, e.Name()+" "+target)
		}
	}
	return files
}

// holders are the namespaces that threads of this machine are in.
func holders(t *testing.T) map[string]bool {
	links, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	require.NoError(t, err)
	held := map[string]bool{}
	for _, l := range links {
		if id, err := os.Readlink(l); err == nil {
			held[id] = true
		}
	}
	return held
}

func requireGone(t *testing.T, ns string) {
	t.Helper()
	require.Eventually(t, func() bool { return !holders(t)[ns] }, 10*time.Second, 10*time.Millisecond, "%s is still there", ns)
}

func BenchmarkCluster(b *testing.B) {
	for b.Loop() {
		l := New()
		l.Cluster()
		if err := l.Err(); err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

// TestEchoIdentifier: the port of a ping's source is its identifier, by which conntrack knows it again.
func TestEchoIdentifier(t *testing.T) {
	require.Equal(t, []byte{5062 >> 8, 5062 & 0xff}, echoMessage(false, 5062, []byte("payload"))[4:6])
	require.Equal(t, []byte("pa"), echoMessage(true, 0, []byte("payload"))[4:6])
}
