// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nftables_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
	"sigs.k8s.io/kpng/internal/netlab"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

var options = dataplane.Options{
	Owner:        "kpng-test",
	ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("11.0.0.0/16"), netip.MustParsePrefix("1100::/64")},
}

func newWriter(t testing.TB) *nftables.Writer { return newWriterOf(t, options) }

func newWriterOf(t testing.TB, o dataplane.Options) *nftables.Writer {
	w, err := nftables.New(o)
	require.NoError(t, err)
	return w
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func targets(port uint16, addrs ...string) (out []dataplane.Target) {
	for _, a := range addrs {
		out = append(out, dataplane.Target{IP: addr(a), Port: port, Local: strings.HasPrefix(a, "11.0.1.") || strings.HasPrefix(a, "1100::1")})
	}
	return out
}

func service(name string, frontends ...dataplane.Frontend) *dataplane.Service {
	s := &dataplane.Service{Name: name, Frontends: frontends}
	s.Normalize()
	return s
}

func port(ip string, p uint16, t ...dataplane.Target) dataplane.Frontend {
	return dataplane.Frontend{Kind: dataplane.ClusterIP, IP: addr(ip), Protocol: dataplane.TCP, Port: p, Pool: dataplane.Pool{Targets: t}}
}

// scenarios are every feature of the model, once.
func scenarios() map[string][]*dataplane.Service {
	anyIP := func(ip string, t ...dataplane.Target) dataplane.Frontend {
		return dataplane.Frontend{Kind: dataplane.ExternalIP, IP: addr(ip), Pool: dataplane.Pool{Targets: t}}
	}
	nodePort := port("0.0.0.0", 30080, targets(8080, "11.0.1.2", "11.0.2.2")...)
	nodePort.Kind, nodePort.Masquerade = dataplane.NodePort, dataplane.NonLocal
	local := port("203.0.113.7", 80, targets(8080, "11.0.1.2", "11.0.2.2")...)
	local.Local = &dataplane.Pool{Targets: targets(8080, "11.0.1.2")}
	localNone := port("1000::7", 80, targets(8080, "1100::202")...)
	localNone.Local, localNone.Masquerade = &dataplane.Pool{Empty: dataplane.Drop}, dataplane.Always
	sources := port("203.0.113.8", 443, targets(0, "11.0.1.2")...)
	sources.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("192.0.2.1/32")}
	manySources := port("1000::8", 445, targets(0, "1100::102")...)
	for i := range 12 {
		manySources.Sources = append(manySources.Sources, netip.PrefixFrom(addr(fmt.Sprintf("2001:db8:%x::", 2*i)), 48))
	}
	nobody := port("203.0.113.8", 444, targets(0, "11.0.1.2")...)
	nobody.Sources = []netip.Prefix{}
	sticky := port("203.0.113.9", 53, targets(5353, "11.0.1.2", "11.0.1.3")...)
	sticky.Protocol, sticky.Affinity = dataplane.UDP, 3*time.Hour
	sticky6 := anyIP("1000::9", targets(0, "1100::102", "1100::103")...)
	sticky6.Affinity = 10 * time.Second
	stickyLocal := port("203.0.113.14", 80, targets(8080, "11.0.1.2", "11.0.2.2")...)
	stickyLocal.Affinity, stickyLocal.Local = time.Minute, &dataplane.Pool{Targets: targets(8080, "11.0.1.2")}
	stickyToo := sticky
	stickyToo.IP = addr("203.0.113.15")
	stickyLocal.Masquerade, stickyLocal.Sources = dataplane.Remote, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	remote := nodePort
	remote.Port, remote.Masquerade, remote.Local = 30081, dataplane.Remote, &dataplane.Pool{Targets: targets(8080, "11.0.1.2")}
	localAny := anyIP("1000::15", targets(0, "1100::102", "1100::202")...)
	localAny.Local = &dataplane.Pool{Targets: targets(0, "1100::102")}
	big := port("1000::16", 132)
	big.Protocol = dataplane.SCTP
	for i := range 10 {
		big.Pool.Targets = append(big.Pool.Targets, targets(0, fmt.Sprintf("1100::2%02d", i))...)
	}
	drop := port("203.0.113.11", 80)
	drop.Pool.Empty = dataplane.Drop
	var ends []dataplane.Frontend // nothing for anybody, refused here and dropped there, in both families
	for _, ip := range []string{"203.0.113.16", "1000::17"} {
		for i, empty := range []dataplane.Action{dataplane.Reject, dataplane.Drop} {
			f := port(ip, uint16(80+i))
			f.Local = &dataplane.Pool{Empty: empty}
			ends = append(ends, f)
		}
	}
	egress := service("ns/egress", anyIP("203.0.113.12", targets(0, "11.0.1.2")...), anyIP("1000::12", targets(0, "1100::102")...))
	egress.Egress = []dataplane.Egress{{Source: addr("11.0.1.2"), IP: addr("203.0.113.12")}, {Source: addr("1100::102"), IP: addr("1000::12")}}
	hostile := "ns/\"; flush ruleset; #\n" + strings.Repeat("x", 300)
	return map[string][]*dataplane.Service{
		"empty":    nil,
		"all-ip":   {service("ns/one", anyIP("203.0.113.1", targets(0, "11.0.1.2")...)), service("ns/three", anyIP("1000::3", targets(0, "1100::102", "1100::103", "1100::202")...))},
		"ports":    {service("ns/web", port("203.0.113.5", 80, targets(8080, "11.0.1.2", "11.0.1.3", "11.0.2.2")...), port("1000::5", 80, targets(8080, "1100::102", "1100::202")...))},
		"nodeport": {service("ns/np", nodePort, port("203.0.113.6", 80, targets(8080, "11.0.1.2", "11.0.2.2")...))},
		"remote":   {service("ns/remote", remote, localAny)},
		"big":      {service("ns/big", big)},
		"mixed":    {service("ns/mixed", stickyLocal, stickyToo)},
		"local":    {service("ns/local", local), service("ns/local-none", localNone)},
		"sources":  {service("ns/sources", sources, nobody, manySources)},
		"affinity": {service("ns/sticky", sticky, sticky6)},
		"none":     {service("ns/none", port("203.0.113.10", 80), drop)},
		"ends":     {service("ns/ends", ends...)},
		"egress":   {egress},
		"hostile":  {service(hostile, port("203.0.113.13", 80, targets(8080, "11.0.1.2")...))},
	}
}

func list(t testing.TB, h *netlab.Host, args ...string) string {
	t.Helper()
	out, err := h.Command(t.Context(), "nft", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// What is written lists cleanly, in both forms; as text it is the same to nft; and it is gone after Cleanup.
func TestGolden(t *testing.T) {
	for name, services := range scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, s := range services {
				require.NoError(t, s.Validate())
			}
			lab := netlab.ForTest(t)
			h, other := lab.Host("node"), lab.Host("other")
			w := newWriter(t)
			require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), services) }))
			got := list(t, h, "list", "ruleset")
			golden(t, name+".nft", got)
			require.True(t, json.Valid([]byte(list(t, h, "-j", "list", "ruleset"))))

			text := filepath.Join(t.TempDir(), "text.nft")
			require.NoError(t, os.WriteFile(text, []byte(w.Text(services)), 0o600))
			list(t, other, "-f", text)
			require.Equal(t, sortedLines(got), sortedLines(list(t, other, "list", "ruleset")), "Text is not what Replace writes")

			require.NoError(t, h.Do(func() error { return w.Cleanup(t.Context()) }))
			require.Empty(t, list(t, h, "list", "ruleset"))
			require.NoError(t, h.Do(func() error { return w.Cleanup(t.Context()) }))
		})
	}
}

// The options that make a difference to what is written.
func TestGoldenOptions(t *testing.T) {
	o := options
	o.DropInvalid, o.NodePortCIDRs = true, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fd31::1/128")}
	o.Priority, o.Mark, o.MarkAlways, o.ConnMark = 1, 0x10, 0x20, 0x40
	w := newWriterOf(t, o)
	services := scenarios()["remote"]
	lab := netlab.ForTest(t)
	h, other := lab.Host("node"), lab.Host("other")
	require.NoError(t, h.Do(func() error { return w.Replace(t.Context(), services) }))
	got := list(t, h, "list", "ruleset")
	golden(t, "options.nft", got)
	text := filepath.Join(t.TempDir(), "text.nft")
	require.NoError(t, os.WriteFile(text, []byte(w.Text(services)), 0o600))
	list(t, other, "-f", text)
	require.Equal(t, sortedLines(got), sortedLines(list(t, other, "list", "ruleset")), "Text is not what Replace writes")
}

func golden(t *testing.T, name, got string) {
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// Any way from one scenario to another by Apply ends where Replace does.
func TestApplyIsReplace(t *testing.T) {
	all := scenarios()
	lab := netlab.ForTest(t)
	h, fresh := lab.Host("node"), lab.Host("fresh")
	ctx := context.Background()
	w, f := newWriter(t), newWriter(t)
	require.NoError(t, h.Do(func() error { return w.Replace(ctx, nil) }))
	held := map[string]*dataplane.Service{}
	apply := func(next ...*dataplane.Service) {
		t.Helper()
		var changes []dataplane.Change
		now := map[string]*dataplane.Service{}
		for _, s := range next {
			now[s.Name] = s
			if old := held[s.Name]; !dataplane.Equal(old, s) {
				changes = append(changes, dataplane.Change{Old: old, New: s})
			}
		}
		for name, old := range held {
			if now[name] == nil {
				changes = append(changes, dataplane.Change{Old: old})
			}
		}
		held = now
		require.NoError(t, h.Do(func() error { return w.Apply(ctx, changes) }))
		require.NoError(t, fresh.Do(func() error { return f.Replace(ctx, next) }))
		require.Equal(t, sortedLines(list(t, fresh, "list", "ruleset")), sortedLines(withoutSpare(list(t, h, "list", "ruleset"))))
	}
	for _, from := range all {
		apply(from...)
		for name, to := range all {
			t.Log(name)
			apply(to...)
			apply(from...)
		}
	}
	// The same service, in many forms.
	for _, services := range all {
		for _, s := range services {
			same := *s
			same.Name = "ns/same"
			apply(&same)
		}
	}
	apply()
}

// withoutSpare leaves chains out of a listing that nothing leads to: Apply keeps those that mark, and that choose targets.
func withoutSpare(listing string) string {
	spare := regexp.MustCompile(`(?s)\tchain [a-z-]*targets[46]-[a-z0-9-]+ \{.*?\n\t\}\n`)
	less := spare.ReplaceAllStringFunc(listing, func(block string) string {
		name := strings.Fields(block)[1]
		if strings.Contains(name, "--") || regexp.MustCompile(`goto `+name+`[\s,]`).MatchString(listing) {
			return block
		}
		return ""
	})
	if less == listing {
		return less
	}
	return withoutSpare(less) // what only a spare chain leads to
}

// sortedLines is a listing without the order in which objects were made.
func sortedLines(s string) map[string]int {
	out := map[string]int{}
	for _, l := range strings.Split(strings.ReplaceAll(strings.ReplaceAll(s, "elements = {", ""), "}", ""), "\n") {
		for _, e := range splitElements(l) {
			out[e]++
		}
	}
	return out
}

func splitElements(l string) []string {
	if strings.Contains(l, "{") {
		return []string{strings.TrimSpace(l)}
	}
	var out []string
	for _, e := range strings.Split(l, ",") {
		if e = strings.TrimSpace(e); e != "" {
			out = append(out, e)
		}
	}
	return out
}
