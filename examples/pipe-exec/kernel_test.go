// SPDX-License-Identifier: Apache-2.0

package pipeexec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	"sigs.k8s.io/kpng/internal/netlab"
)

var (
	external4 = netip.MustParseAddr("10.0.0.55")
	external6 = netip.MustParseAddr("1000::55")
)

// site is a cluster whose first node has the script, with three pods of its own, and whose second has one.
type site struct {
	*netlab.Cluster
	node *netlab.Node
	env  []string
}

// forEachIptables runs test with the nft and the legacy iptables.
func forEachIptables(t *testing.T, test func(t *testing.T, s *site)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			s := newSite(t, variant)
			if variant == "legacy" {
				if got := s.command(t, "iptables-legacy", "-t", "nat", "-S"); got.status != 0 {
					t.Skipf("this kernel has no legacy iptables: %s", got.stderr)
				}
			}
			test(t, s)
		})
	}
}

func newSite(t *testing.T, variant string) *site {
	t.Helper()
	require.NoError(t, netlab.Privileged(), "the tests of the script need network namespaces: run them as root")
	needTool(t, "jq", "iptables-"+variant, "ip6tables-"+variant)
	lab := netlab.ForTest(t)
	c := lab.Cluster(netlab.NodeSpec{Name: "n1", Pods: []string{"a", "b", "c"}}, netlab.NodeSpec{Name: "n2", Pods: []string{"d"}})
	s := &site{Cluster: c, node: c.Nodes[0], env: append(os.Environ(),
		"iptables=iptables-"+variant, "ip6tables=ip6tables-"+variant,
		"XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "lock"), // the usual one is root's, and the whole machine's
	)}
	for _, external := range []netip.Addr{external4, external6} {
		c.Client.Route(netip.PrefixFrom(external, external.BitLen()), s.node.Addr(external.Is6()), "")
		// The node must have some route for what it sends itself to get as far as the chain OUTPUT.
		s.node.Route(netip.PrefixFrom(external, external.BitLen()), c.Client.Addr(external.Is6()), "")
	}
	for _, node := range c.Nodes {
		for _, pod := range node.Pods {
			pod.Serve(6000)
		}
	}
	return s
}

// command runs a program on the node.
func (s *site) command(t testing.TB, name string, args ...string) outcome {
	t.Helper()
	cmd := s.node.Command(t.Context(), name, args...)
	cmd.Env = s.env
	return finish(t, cmd.Cmd, cmd)
}

// script runs the script on the node.
func (s *site) script(t testing.TB, stdin []byte, env []string, args ...string) outcome {
	t.Helper()
	cmd := s.node.Command(t.Context(), script(t), args...)
	cmd.Env = append(s.env[:len(s.env):len(s.env)], env...)
	cmd.Stdin = bytes.NewReader(stdin)
	return finish(t, cmd.Cmd, cmd)
}

// apply has the script make the items the node's rules.
func (s *site) apply(t testing.TB, items ...*fullstate.ServiceEndpoints) {
	t.Helper()
	require.Equal(t, outcome{}, s.script(t, encode(t, items...), nil))
}

func encode(t testing.TB, items ...*fullstate.ServiceEndpoints) []byte {
	t.Helper()
	var input bytes.Buffer
	for _, item := range items {
		require.NoError(t, json.NewEncoder(&input).Encode(item))
	}
	return input.Bytes()
}

// rules is the node's table nat, of both families.
func (s *site) rules(t testing.TB) string {
	t.Helper()
	var all string
	for _, env := range s.env {
		if name, ok := strings.CutPrefix(env, "iptables="); ok {
			for _, program := range []string{name, "ip6" + strings.TrimPrefix(name, "ip")} {
				got := s.command(t, program, "-t", "nat", "-S")
				require.Zero(t, got.status, got.stderr)
				all += "# " + program + "\n" + got.stdout
			}
		}
	}
	return all
}

// service is the walk-through's, with an endpoint of each family for each pod.
func (s *site) service(pods ...*netlab.Host) *fullstate.ServiceEndpoints {
	item := &fullstate.ServiceEndpoints{Service: &localv1.Service{
		Namespace: "default", Name: "kpng-example", Type: "ClusterIP",
		IPs: &localv1.ServiceIPs{
			ClusterIPs: &localv1.IPSet{}, Headless: true,
			ExternalIPs: &localv1.IPSet{V4: []string{external4.String()}, V6: []string{external6.String()}},
		},
		Ports: []*localv1.PortMapping{{Protocol: localv1.Protocol_TCP, Port: 6000, TargetPort: 6000}},
	}}
	for _, pod := range pods {
		local := false
		for _, own := range s.node.Pods {
			local = local || own == pod
		}
		for _, ips := range []*localv1.IPSet{{V4: []string{pod.Addr(false).String()}}, {V6: []string{pod.Addr(true).String()}}} {
			item.Endpoints = append(item.Endpoints, &localv1.Endpoint{
				IPs: ips, Local: local, Scopes: &localv1.EndpointScopes{Internal: true, External: true},
			})
		}
	}
	return item
}

// ask sends one packet or connection from a host to an external address.
func ask(from *netlab.Host, network string, to netip.Addr, timeout time.Duration) (netlab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return from.Probe(ctx, netlab.Probe{Network: network, To: netip.AddrPortFrom(to, 6000), Size: 100})
}

const (
	patience = 20 * time.Second       // for an answer that must come
	silence  = 300 * time.Millisecond // for one that must not
)

var networks = []string{"tcp", "udp", "icmp"}

// requireAnswers has the client's packets of every kind answered by pod, which sees the client's own address.
func (s *site) requireAnswers(t testing.TB, pod string) {
	t.Helper()
	for _, network := range networks {
		for _, to := range []netip.Addr{external4, external6} {
			got, err := ask(s.Client, network, to, patience)
			require.NoError(t, err)
			require.Equal(t, pod, got.Host, "%s to %s", network, to)
			require.Equal(t, s.Client.Addr(to.Is6()), got.Client.Addr(), "the source address of %s to %s", network, to)
		}
	}
}

func (s *site) requireSilence(t testing.TB) {
	t.Helper()
	for _, network := range networks {
		for _, to := range []netip.Addr{external4, external6} {
			got, err := ask(s.Client, network, to, silence)
			require.Error(t, err, "%s to %s: answered by %s", network, to, got)
		}
	}
}

func TestPacketsReachTheLocalPod(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		far := s.Nodes[1].Pods[0]
		s.requireSilence(t)
		s.apply(t, s.service(s.node.Pods[0], far))
		s.requireAnswers(t, "a")

		for _, network := range networks { // what the node sends itself
			got, err := ask(s.node.Host, network, external4, patience)
			require.NoError(t, err)
			require.Equal(t, "a", got.Host)
			got, err = ask(s.node.Host, network, external6, patience)
			require.NoError(t, err)
			require.Equal(t, "a", got.Host)
		}

		s.apply(t, s.service(s.node.Pods[1], far))
		s.requireAnswers(t, "b")

		s.apply(t, s.service(far)) // none on this node any more
		s.requireSilence(t)

		s.apply(t, s.service(s.node.Pods[2]))
		s.requireAnswers(t, "c")
		s.apply(t) // no service any more
		s.requireSilence(t)
		require.NotContains(t, s.rules(t), "DNAT")
	})
}

func TestSpread(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		s.apply(t, s.service(s.node.Pods...))
		for _, to := range []netip.Addr{external4, external6} {
			const asked = 120
			count := map[string]int{}
			for range asked {
				got, err := ask(s.Client, "tcp", to, patience)
				require.NoError(t, err)
				count[got.Host]++
			}
			// A third each is 40; fewer than 15 or more than 65 comes about once in a million runs.
			for _, pod := range []string{"a", "b", "c"} {
				require.InDelta(t, asked/3, count[pod], 25, "%s: %v", to, count)
			}
		}
	})
}

// TestNoGap: while the script runs again and again, no datagram gets lost. (TCP would try again, and hide a gap.)
func TestNoGap(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		s.apply(t, s.service(s.node.Pods[:2]...))
		stop, lost := make(chan struct{}), make(chan error, 1)
		go func() {
			var errs []error
			for {
				select {
				case <-stop:
					lost <- errors.Join(errs...)
					return
				default:
					if _, err := ask(s.Client, "udp", external4, patience); err != nil {
						errs = append(errs, err)
					}
				}
			}
		}()
		for i := range 10 {
			s.apply(t, s.service(s.node.Pods[i%2:i%2+2]...))
		}
		close(stop)
		require.NoError(t, <-lost)
	})
}

func TestIdempotent(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		s.apply(t, s.service(s.node.Pods...))
		first := s.rules(t)
		require.Equal(t, 6, strings.Count(first, "DNAT"), first)
		s.apply(t, s.service(s.node.Pods...))
		require.Equal(t, first, s.rules(t))
	})
}

func TestForeignRulesStay(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		for _, args := range []string{
			"-t nat -N KPNG-ALLIP-NOT", "-t nat -A KPNG-ALLIP-NOT -d 10.9.9.9 -j RETURN",
			"-t nat -A PREROUTING -j KPNG-ALLIP-NOT", "-t nat -A POSTROUTING -s 10.9.9.9 -j RETURN",
		} {
			for _, env := range s.env[len(s.env)-3 : len(s.env)-1] { // iptables and ip6tables
				_, program, _ := strings.Cut(env, "=")
				if strings.HasPrefix(program, "ip6") {
					args = strings.ReplaceAll(args, "10.9.9.9", "fd00::9")
				}
				got := s.command(t, program, strings.Fields(args)...)
				require.Zero(t, got.status, got.stderr)
			}
		}
		before := s.rules(t)
		s.apply(t, s.service(s.node.Pods...))
		require.Equal(t, before, withoutOurs(s.rules(t)))
		s.apply(t)
		require.Equal(t, before, withoutOurs(s.rules(t)))
		s.apply(t, s.service(s.node.Pods...))

		for range 2 { // the second time there is nothing left to clean
			require.Equal(t, outcome{}, s.script(t, nil, nil, "cleanup"))
			require.Equal(t, before, s.rules(t))
		}
		s.requireSilence(t)
	})
}

var oursPattern = regexp.MustCompile(`(?m)^.* KPNG-ALLIP( .*)?\n`)

func withoutOurs(rules string) string { return oursPattern.ReplaceAllString(rules, "") }

// TestInputsOfTheDryRun: the kernel takes all the rules that the dry run prints, and nothing else comes of them.
func TestInputsOfTheDryRun(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	forEachIptables(t, func(t *testing.T, s *site) {
		bare := s.rules(t)
		for _, input := range inputs {
			stdin, err := os.ReadFile(input)
			require.NoError(t, err)
			got := s.script(t, stdin, nil)
			require.Zero(t, got.status, "%s: %s", input, got.stderr)
			golden, err := os.ReadFile(strings.TrimSuffix(input, ".json") + ".golden")
			require.NoError(t, err)
			rules := s.rules(t)
			require.Equal(t, destinations(string(golden)), destinations(rules), "%s: %s", input, rules)
			require.Equal(t, bare, withoutOurs(rules))
		}
	})
}

var destinationPattern = regexp.MustCompile(`(?m)^-A KPNG-ALLIP .*-j DNAT --to-destination (\S+)$`)

// destinations are the destinations of all rules, in order.
func destinations(rules string) []string {
	var all []string
	for _, match := range destinationPattern.FindAllStringSubmatch(rules, -1) {
		all = append(all, match[1])
	}
	return all
}

func TestGarbageChangesNothing(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		good := s.service(s.node.Pods[0])
		s.apply(t, good)
		before := s.rules(t)
		whole := encode(t, good, good)
		for _, input := range [][]byte{[]byte("garbage"), whole[:len(whole)-5], append(encode(t), "{}\n"...)} {
			require.Equal(t, 1, s.script(t, input, nil).status)
			require.Equal(t, before, s.rules(t))
		}
		// One item of two, as when kpng-callout is killed while it writes.
		require.Equal(t, 1, s.script(t, encode(t, good), []string{"KPNG_ITEMS=2"}).status)
		require.Equal(t, before, s.rules(t))
		s.requireAnswers(t, "a")
	})
}

func TestWithoutIPv6(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		for _, problem := range []string{"no-such-ip6tables", "false"} {
			got := s.script(t, encode(t, s.service(s.node.Pods[0])), []string{"ip6tables=" + problem})
			require.Zero(t, got.status, got.stderr)
			require.Contains(t, got.stderr, "IPv6 is left out")
		}
		answer, err := ask(s.Client, "tcp", external4, patience)
		require.NoError(t, err)
		require.Equal(t, "a", answer.Host)
		_, err = ask(s.Client, "tcp", external6, silence)
		require.Error(t, err)
	})
}

// TestFailureOfOneFamily: a family whose rules cannot be written does not hold up the other, and is not kept quiet.
func TestFailureOfOneFamily(t *testing.T) {
	forEachIptables(t, func(t *testing.T, s *site) {
		got := s.script(t, encode(t, s.service(s.node.Pods[0])), []string{"iptables_restore=false"})
		require.Equal(t, 1, got.status)
		require.Contains(t, got.stderr, "could not be written")
		answer, err := ask(s.Client, "tcp", external6, patience)
		require.NoError(t, err)
		require.Equal(t, "a", answer.Host)
	})
}

// TestWaitsForTheLock: another program that holds the lock of the legacy iptables for a moment is waited for.
func TestWaitsForTheLock(t *testing.T) {
	s := newSite(t, "legacy")
	if got := s.command(t, "iptables-legacy", "-t", "nat", "-S"); got.status != 0 {
		t.Skipf("this kernel has no legacy iptables: %s", got.stderr)
	}
	path := strings.TrimPrefix(s.env[len(s.env)-1], "XTABLES_LOCKFILE=")
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	var released atomic.Bool
	time.AfterFunc(500*time.Millisecond, func() {
		released.Store(true)
		_ = lock.Close()
	})
	got := s.script(t, encode(t, s.service(s.node.Pods[0])), nil)
	require.Zero(t, got.status, got.stderr)
	require.True(t, released.Load(), "the script did not wait; does this iptables know XTABLES_LOCKFILE?")
	s.requireAnswers(t, "a")
}
