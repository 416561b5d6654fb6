// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
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

const (
	patience = 20 * time.Second       // for what must come
	silence  = 500 * time.Millisecond // for an answer that must not
)

// world is a cluster whose node n1 runs the program, fed by a server. Its pod n1-a is the mail server; n1-b is not.
type world struct {
	t       *testing.T
	cluster *netlab.Cluster
	node    *netlab.Node
	server  *localtest.Server
	vip     [2]netip.Addr
}

func newWorld(t *testing.T) *world {
	require.NoError(t, netlab.Privileged(), "these tests need network namespaces: run them as root")
	w := &world{
		t: t, cluster: netlab.ForTest(t).Cluster(),
		server: localtest.Start(t, localtest.Unix(filepath.Join(t.TempDir(), "kpng.sock"))),
		vip:    [2]netip.Addr{netip.MustParseAddr("192.0.2.25"), netip.MustParseAddr("2001:db8::25")},
	}
	w.node = w.cluster.Nodes[0]
	for _, vip := range w.vip {
		w.cluster.Client.Route(netip.PrefixFrom(vip, vip.BitLen()), w.node.Addr(vip.Is6()), "")
		w.node.DefaultRoute(w.cluster.Client.Addr(vip.Is6()), "") // as nodes have one
	}
	for _, cidr := range w.node.PodCIDRs {
		w.cluster.Client.Route(cidr, w.node.Addr(cidr.Addr().Is6()), "")
	}
	w.cluster.Client.Serve(25)
	for _, n := range w.cluster.Nodes {
		for _, pod := range n.Pods {
			pod.Serve(25, 2525)
		}
	}
	return w
}

// serve makes the pods the endpoints of the one service.
func (w *world) serve(pods ...*netlab.Host) {
	w.server.Update(func(s localtest.State) {
		s.Delete("mail/smtp")
		svc := localtest.Service("mail/smtp", "172.30.0.25", 25)
		svc.IPs.ExternalIPs = localv1.NewIPSet(w.vip[0].String(), w.vip[1].String())
		svc.Ports = []*localv1.PortMapping{
			{Name: "smtp", Protocol: localv1.Protocol_TCP, Port: 25, TargetPort: 2525},
			{Name: "dns", Protocol: localv1.Protocol_UDP, Port: 25, TargetPort: 2525},
		}
		s.SetService(svc)
		for _, pod := range pods {
			for _, v6 := range []bool{false, true} {
				ep := localtest.Endpoint(pod.Addr(v6).String())
				ep.Local = pod == w.node.Pods[0] || pod == w.node.Pods[1]
				ep.PortOverrides = []*localv1.PortName{{Name: "smtp", Port: 2525}, {Name: "dns", Port: 2525}}
				s.SetEndpoint("mail/smtp", pod.Addr(v6).String(), ep)
			}
		}
	})
}

func (w *world) program(args ...string) (*netlab.Cmd, *bytes.Buffer) {
	args = append([]string{"--node-name=n1", "--api=" + w.server.Target()}, args...)
	cmd := w.node.Command(w.t.Context(), os.Args[0], args...)
	stderr := &bytes.Buffer{}
	cmd.Env, cmd.Stderr = append(os.Environ(), "KPNG_TEST_PROGRAM=1"), stderr
	return cmd, stderr
}

func (w *world) ask(from *netlab.Host, to netip.Addr, network string, within time.Duration) (netlab.Answer, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	return from.Probe(ctx, netlab.Probe{Network: network, To: netip.AddrPortFrom(to, 25)})
}

// TestMail: mail comes in at the external IP and leaves with it, on both dataplanes.
func TestMail(t *testing.T) {
	for _, dataplane := range []string{"nftables", "iptables"} {
		t.Run(dataplane, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pods, far, client := w.node.Pods, w.cluster.Nodes[1].Pods[0], w.cluster.Client
			w.serve(far, pods[0])
			cmd, stderr := w.program("--dataplane="+dataplane, "--cluster-cidrs=11.0.0.0/16,1100::/64,172.31.0.1/32,172.31.0.2/32,fd31::1/128,fd31::2/128")
			require.NoError(t, cmd.Start())
			for _, vip := range w.vip {
				var answer netlab.Answer
				require.Eventually(t, func() (ok bool) {
					var err error
					answer, err = w.ask(client, vip, "tcp", silence)
					return err == nil
				}, patience, 20*time.Millisecond, stderr)
				require.Equal(t, "n1-a", answer.Host, "the pod on this node")
				require.Equal(t, client.Addr(vip.Is6()), answer.Client.Addr(), "sees the client")
				_, err := w.ask(client, vip, "udp", silence)
				require.Error(t, err, "no mail comes over UDP")

				answer, err = w.ask(pods[0], client.Addr(vip.Is6()), "tcp", patience)
				require.NoError(t, err)
				require.Equal(t, vip, answer.Client.Addr(), "mail leaves with the external IP")
				answer, err = w.ask(pods[1], client.Addr(vip.Is6()), "tcp", patience)
				require.NoError(t, err)
				require.Equal(t, pods[1].Addr(vip.Is6()), answer.Client.Addr(), "what other pods send does not")
				answer, err = w.ask(pods[0], far.Addr(vip.Is6()), "tcp", patience)
				require.NoError(t, err)
				require.Equal(t, pods[0].Addr(vip.Is6()), answer.Client.Addr(), "nor what stays in the cluster")
				answer, err = w.ask(pods[0], vip, "tcp", patience)
				require.NoError(t, err)
				require.Equal(t, "n1-a", answer.Host, "a mail server may write to itself")
			}

			w.serve(far)
			for _, vip := range w.vip {
				require.Eventually(t, func() bool {
					_, err := w.ask(client, vip, "tcp", silence)
					return err != nil
				}, patience, 20*time.Millisecond)
				_, err := w.ask(client, vip, "tcp", silence)
				require.ErrorIs(t, err, netlab.ErrNoAnswer, "without a pod here it is silent, not refused")
				require.NotErrorIs(t, err, syscall.ECONNREFUSED)
			}

			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait(), stderr)
			cmd, stderr = w.program("--cleanup")
			require.NoError(t, cmd.Run(), stderr)
			rules, err := w.node.Command(t.Context(), "nft", "list", "ruleset").Output()
			require.NoError(t, err)
			require.NotContains(t, string(bytes.ToLower(rules)), "kpng-mail")
		})
	}
}
