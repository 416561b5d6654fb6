// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

var ip, prefix = netip.MustParseAddr, netip.MustParsePrefix

func options() dataplane.Options {
	return dataplane.Options{Owner: "kpng-test", ClusterCIDRs: []netip.Prefix{prefix("11.0.0.0/16"), prefix("1100::/64")}}
}

func targets(port uint16, ips ...string) dataplane.Pool {
	var p dataplane.Pool
	for i, text := range ips {
		p.Targets = append(p.Targets, dataplane.Target{IP: ip(text), Port: port, Local: i == 0})
	}
	return p
}

// scenario is what a golden file is for.
type scenario struct {
	name     string
	services []*dataplane.Service
	options  func(*dataplane.Options) // nil: those of all
}

// writer is one with the scenario's options, or else the one at hand.
func (s scenario) writer(t *testing.T, flavor Flavor, otherwise *Writer) *Writer {
	t.Helper()
	if s.options == nil && otherwise != nil {
		return otherwise
	}
	o := options()
	if s.options != nil {
		s.options(&o)
	}
	w, err := New(o, flavor)
	require.NoError(t, err)
	return w
}

func frontend(kind dataplane.Kind, address string, protocol dataplane.Protocol, port uint16, pool dataplane.Pool) dataplane.Frontend {
	return dataplane.Frontend{Kind: kind, IP: ip(address), Protocol: protocol, Port: port, Pool: pool}
}

func with(f dataplane.Frontend, change func(*dataplane.Frontend)) dataplane.Frontend {
	change(&f)
	return f
}

func scenarios() []scenario {
	any4 := frontend(dataplane.ExternalIP, "192.0.2.1", dataplane.Any, 0, targets(0, "11.0.1.2"))
	any6 := frontend(dataplane.ExternalIP, "1000::55", dataplane.Any, 0, targets(0, "1100::202"))
	tcp := frontend(dataplane.ClusterIP, "10.0.0.1", dataplane.TCP, 80, targets(8080, "11.0.1.2", "11.0.1.3", "11.0.2.2"))
	service := func(frontends ...dataplane.Frontend) []*dataplane.Service {
		return []*dataplane.Service{{Name: "default/web", Frontends: frontends}}
	}
	local := targets(8080, "11.0.1.2")
	return []scenario{
		{name: "nothing"},
		{name: "all-ip", services: service(any4, any6)},
		{name: "all-ip-spread", services: service(
			with(any4, func(f *dataplane.Frontend) { f.Pool = targets(0, "11.0.1.2", "11.0.1.3", "11.0.1.4") }),
			with(any6, func(f *dataplane.Frontend) { f.Pool = targets(0, "1100::202", "1100::203"); f.Affinity = 3 * time.Hour }))},
		{name: "all-ip-remote", services: service(with(any4, func(f *dataplane.Frontend) { f.Masquerade = dataplane.Always }))},
		{name: "all-ip-egress", services: []*dataplane.Service{{Name: "default/sip", Frontends: []dataplane.Frontend{any4, any6},
			Egress: []dataplane.Egress{{Source: ip("11.0.1.2"), IP: ip("192.0.2.1")}, {Source: ip("1100::202"), IP: ip("1000::55")}}}}},
		{name: "refused", services: service(
			with(any4, func(f *dataplane.Frontend) { f.Pool = dataplane.Pool{} }),
			with(tcp, func(f *dataplane.Frontend) { f.Pool = dataplane.Pool{} }),
			frontend(dataplane.ClusterIP, "10.0.0.1", dataplane.UDP, 53, dataplane.Pool{Empty: dataplane.Drop}),
			frontend(dataplane.ClusterIP, "fd00::1", dataplane.SCTP, 53, dataplane.Pool{}))},
		{name: "ports", services: service(
			with(tcp, func(f *dataplane.Frontend) { f.Masquerade = dataplane.NonLocal }),
			frontend(dataplane.ClusterIP, "10.0.0.1", dataplane.UDP, 53, targets(5353, "11.0.1.2")),
			frontend(dataplane.ClusterIP, "fd00::1", dataplane.SCTP, 53, targets(5353, "1100::202", "1100::203")),
			frontend(dataplane.NodePort, "0.0.0.0", dataplane.TCP, 30080, targets(8080, "11.0.1.2", "11.0.2.2")),
			frontend(dataplane.NodePort, "::", dataplane.TCP, 30080, targets(8080, "1100::202")))},
		{name: "node-port-remote", services: service(with(frontend(dataplane.NodePort, "0.0.0.0", dataplane.UDP, 30053, targets(5353, "11.0.1.2", "11.0.2.2")),
			func(f *dataplane.Frontend) { f.Masquerade = dataplane.Remote }))},
		{name: "drop-invalid", services: service(any4), options: func(o *dataplane.Options) { o.DropInvalid = true }},
		{name: "policy-local", services: service(
			with(tcp, func(f *dataplane.Frontend) { f.Kind = dataplane.LoadBalancerIP; f.Local = &local }),
			with(tcp, func(f *dataplane.Frontend) {
				f.Kind, f.Port, f.Local = dataplane.LoadBalancerIP, 81, &dataplane.Pool{Empty: dataplane.Drop}
			}),
			with(tcp, func(f *dataplane.Frontend) {
				f.Kind, f.Port, f.Pool, f.Local = dataplane.LoadBalancerIP, 82, dataplane.Pool{}, &dataplane.Pool{Empty: dataplane.Drop}
			}))},
		{name: "sources", services: service(
			with(tcp, func(f *dataplane.Frontend) {
				f.Sources = []netip.Prefix{prefix("198.51.100.0/24"), prefix("203.0.113.7/32")}
			}),
			with(tcp, func(f *dataplane.Frontend) { f.Port, f.Sources = 81, []netip.Prefix{} }),
			with(tcp, func(f *dataplane.Frontend) { f.Port, f.Sources = 82, []netip.Prefix{prefix("0.0.0.0/0")} }),
			with(tcp, func(f *dataplane.Frontend) {
				f.Port, f.Sources, f.Pool = 83, []netip.Prefix{prefix("198.51.100.0/24")}, dataplane.Pool{}
			}))},
		{name: "hostile-names", services: []*dataplane.Service{{Name: "x\"\n-A INPUT -j DROP\nCOMMIT $(id) `id` '\\ ü/" + strings.Repeat("n", 300), Frontends: []dataplane.Frontend{any4}}}},
	}
}

// TestGolden: each scenario has the text that it had.
func TestGolden(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			w := s.writer(t, Auto, nil)
			for _, service := range s.services {
				require.NoError(t, service.Validate())
			}
			file := filepath.Join("testdata", s.name+".golden")
			got := w.Text(s.services)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
}

// inBothFlavors runs a test in a namespace of its own, once for each flavor that is installed.
func inBothFlavors(t *testing.T, test func(t *testing.T, w *Writer, flavor Flavor)) {
	for _, flavor := range []Flavor{NFT, Legacy} {
		t.Run(string(flavor), func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("iptables-" + string(flavor)); err != nil {
				t.Skip(err)
			}
			host := netlab.ForTest(t).Host("node")
			require.NoError(t, host.Do(func() error {
				w, err := New(options(), flavor)
				require.NoError(t, err)
				test(t, w, flavor)
				return nil
			}))
		})
	}
}

// listing is what a tool says that is there, as far as it is ours: the text of a transaction for a family.
func listing(t *testing.T, w *Writer, flavor Flavor, f family) string {
	t.Helper()
	var b strings.Builder
	for _, table := range tables {
		out, err := exec.Command(f.program()+"-"+string(flavor)+"-save", "-t", table.String()).Output()
		require.NoError(t, err)
		b.WriteString(transition(table, tableState{}, w.parse(string(out))))
	}
	return b.String()
}

func listings(t *testing.T, w *Writer, flavor Flavor) string {
	var b strings.Builder
	for _, f := range families {
		fmt.Fprintf(&b, "# %s-restore --noflush\n%s", f.program(), listing(t, w, flavor, f))
	}
	return b.String()
}

// TestKernelTakesGolden: the kernel has what Text says, to the letter, after Replace of each scenario by the next.
func TestKernelTakesGolden(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		for _, s := range scenarios() {
			w := s.writer(t, flavor, w)
			require.NoError(t, w.Replace(t.Context(), s.services), s.name)
			require.Equal(t, w.Text(s.services), listings(t, w, flavor), s.name)
			intact, err := w.Check(t.Context())
			require.NoError(t, err)
			require.True(t, intact, s.name)
		}
	})
}

// TestReplaceLeavesWhatIsRight: of the rules that are there as they should be, none is written again, so their counters go
// on; what differs is repaired.
func TestReplaceLeavesWhatIsRight(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		services := scenarios()[6].services
		require.NoError(t, w.Replace(t.Context(), services))
		rules := strings.Count("\n"+w.Text(services), "\n-")
		require.Equal(t, rules, w.Written(), "all that is there")
		for _, f := range families {
			state := w.state(services, f)
			for _, table := range tables {
				out, err := exec.Command(f.program()+"-"+string(flavor)+"-save", "-t", table.String()).Output()
				require.NoError(t, err)
				want := tableState{chains: state[table], hooks: w.tableHooks(table)}
				require.Equal(t, "*"+table.String()+"\nCOMMIT\n", transition(table, w.parse(string(out)), want))
			}
		}
		commands(t, flavor, "-t nat -F KPNG-TEST_PORTS", "-t nat -A KPNG-TEST_EGRESS -j ACCEPT")
		again, err := New(options(), flavor)
		require.NoError(t, err)
		require.NoError(t, again.Replace(t.Context(), services))
		require.Greater(t, again.Written(), 0)
		require.Less(t, again.Written(), rules, "and here only what was wrong")
		require.Equal(t, w.Text(services), listings(t, w, flavor))
	})
}

// TestApplyIsReplace: changes lead to where a Replace leads, from each scenario to each other.
func TestApplyIsReplace(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		require.NoError(t, w.Replace(t.Context(), nil))
		var old *dataplane.Service
		all := scenarios()
		for i := range all {
			s := all[(i*7)%len(all)]
			var now *dataplane.Service
			if len(s.services) != 0 {
				now = s.services[0]
			}
			if old != nil || now != nil {
				require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{Old: old, New: now}}), s.name)
			}
			require.Equal(t, sortLines(w.Text(s.services)), sortLines(listings(t, w, flavor)), s.name)
			intact, err := w.Check(t.Context())
			require.NoError(t, err)
			require.True(t, intact, s.name)
			old = now
		}
	})
}

var counters = regexp.MustCompile(`(?m)^#.*$|\[\d+:\d+\]`)

// foreign is everything that is not ours, without what differs from one listing to the next.
func foreign(t *testing.T, flavor Flavor) string {
	t.Helper()
	out, err := exec.Command("iptables-" + string(flavor) + "-save").Output()
	require.NoError(t, err)
	var b strings.Builder
	for line := range strings.Lines(counters.ReplaceAllString(string(out), "")) {
		if !strings.Contains(line, "KPNG-TEST_") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestForeignRulesStay, also those of an owner whose name begins like ours; and nothing of ours stays after Cleanup.
func TestForeignRulesStay(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		tool := "iptables-" + string(flavor)
		for _, args := range []string{"-t nat -N KPNG-TEST-TOO_X", "-t nat -A KPNG-TEST-TOO_X -j RETURN", "-t nat -A PREROUTING -j KPNG-TEST-TOO_X",
			"-t filter -A FORWARD -d 192.0.2.1 -j ACCEPT", "-t filter -P FORWARD DROP", "-t mangle -A FORWARD -j ACCEPT"} {
			out, err := exec.Command(tool, strings.Fields(args)...).CombinedOutput()
			require.NoError(t, err, string(out))
		}
		before := foreign(t, flavor)
		for _, s := range scenarios() {
			require.NoError(t, w.Replace(t.Context(), s.services))
			require.Equal(t, before, foreign(t, flavor))
		}
		require.NoError(t, w.Cleanup(t.Context()))
		require.Equal(t, before, foreign(t, flavor))
		for _, f := range families {
			require.NotContains(t, listing(t, w, flavor, f), "KPNG-TEST_")
		}
		require.NoError(t, w.Cleanup(t.Context()), "nothing there")
	})
}

// TestNothingOfAnEarlierRunSurvives: other services, hooks twice, and the other flavor.
func TestNothingOfAnEarlierRunSurvives(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		other := map[Flavor]Flavor{NFT: Legacy, Legacy: NFT}[flavor]
		earlier, err := New(options(), other)
		require.NoError(t, err)
		all := scenarios()
		require.NoError(t, earlier.Replace(t.Context(), all[2].services))
		crashed, err := New(options(), flavor)
		require.NoError(t, err)
		require.NoError(t, crashed.Replace(t.Context(), all[6].services)) // takes the other flavor's away
		out, err := exec.Command("iptables-"+string(flavor), "-t", "nat", "-A", "PREROUTING", "-j", "KPNG-TEST_SERVICES").CombinedOutput()
		require.NoError(t, err, string(out))

		require.NoError(t, w.Replace(t.Context(), all[1].services))
		require.Equal(t, w.Text(all[1].services), listings(t, w, flavor))
		require.NotContains(t, listings(t, w, other), "KPNG-TEST_")
	})
}

// TestFailureChangesNothing: the second table's transaction fails, and the first one's is taken back.
func TestFailureChangesNothing(t *testing.T) {
	inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
		all := scenarios()
		require.NoError(t, w.Replace(t.Context(), all[1].services))
		before := listings(t, w, flavor)
		bad := &dataplane.Service{Name: "default/bad", Frontends: []dataplane.Frontend{
			frontend(dataplane.ClusterIP, "10.0.0.9", dataplane.TCP, 80, dataplane.Pool{}), // fine, in filter and nat
			frontend(dataplane.ClusterIP, "10.0.0.9", dataplane.Protocol(200), 81, targets(0, "11.0.1.2")),
		}}
		change := dataplane.Change{Old: all[1].services[0], New: bad}
		require.Error(t, w.Apply(t.Context(), []dataplane.Change{change}))
		require.Equal(t, sortLines(before), sortLines(listings(t, w, flavor)))
		require.Error(t, w.Replace(t.Context(), []*dataplane.Service{bad}))
		require.Equal(t, sortLines(before), sortLines(listings(t, w, flavor)))
		// Both are as if they had not been called.
		require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{Old: all[1].services[0], New: all[2].services[0]}}))
		require.Equal(t, sortLines(w.Text(all[2].services)), sortLines(listings(t, w, flavor)))
	})
}

// TestCheck: it notices what someone else does to our rules, and nothing else.
func TestCheck(t *testing.T) {
	for _, command := range []string{"-t nat -F", "-t nat -F KPNG-TEST_ADDRESSES", "-t nat -F PREROUTING", "-t nat -D POSTROUTING 1",
		"-t filter -F", "-t filter -A KPNG-TEST_FORWARD -j DROP", "-t filter -R KPNG-TEST_FORWARD 1 -j DROP"} {
		t.Run(command, func(t *testing.T) {
			inBothFlavors(t, func(t *testing.T, w *Writer, flavor Flavor) {
				services := scenarios()[1].services
				check := func() bool {
					intact, err := w.Check(t.Context())
					require.NoError(t, err)
					return intact
				}
				run := func(command string) {
					out, err := exec.Command("iptables-"+string(flavor), strings.Fields(command)...).CombinedOutput()
					require.NoError(t, err, string(out))
				}
				require.False(t, check(), "nothing was written")
				require.NoError(t, w.Replace(t.Context(), services))
				require.True(t, check())
				run("-t nat -A PREROUTING -d 192.0.2.77 -j ACCEPT")
				require.True(t, check(), "a change of someone else's rules")
				run(command)
				require.False(t, check())
				require.NoError(t, w.Replace(t.Context(), services))
				require.True(t, check())
				require.Equal(t, w.Text(services), listings(t, w, flavor))
			})
		})
	}
}

// sortLines makes texts comparable whose lines stand in another order, as the order among Services has no meaning. That
// of the rules of a chain that is a Service's own has: such lines are kept together.
func sortLines(text string) []string {
	lines := strings.Split(text, "\n")
	own := regexp.MustCompile(`^-A (KPNG-TEST_[A-Z]_\S+) `)
	var groups []string
	last := ""
	for _, line := range lines {
		m := own.FindStringSubmatch(line)
		if len(m) > 1 && m[1] == last {
			groups[len(groups)-1] += "\n" + line
			continue
		}
		last = ""
		if m != nil {
			last = m[1]
		}
		groups = append(groups, line)
	}
	slices.Sort(groups)
	return groups
}
