// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
)

// Flavor is one of the two kernel interfaces that an iptables program may be built for.
type Flavor string

// The flavors.
const (
	// Auto takes the first one that works: that of the program called iptables, then the other.
	Auto   Flavor = "auto"
	NFT    Flavor = "nft"
	Legacy Flavor = "legacy"
)

// Flavors are the values for a flag.
var flavors = []Flavor{Auto, NFT, Legacy}

// ParseFlavor checks the value of a flag.
func ParseFlavor(s string) (Flavor, error) {
	if f := Flavor(s); slices.Contains(flavors, f) {
		return f, nil
	}
	return "", fmt.Errorf("iptables flavor %q: want auto, nft or legacy", s)
}

// family is IPv4 or IPv6.
type family int

const (
	v4 family = iota
	v6
)

var families = [...]family{v4, v6}

func (f family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// program is what the family's programs begin with.
func (f family) program() string { return [...]string{"iptables", "ip6tables"}[f] }

// lockWait is how long the programs may wait for the lock of the legacy tables.
const lockWait = 30 * time.Second

// tool is the programs of one family and flavor.
type tool struct {
	family  family
	flavor  Flavor
	path    string // of iptables; -restore and -save stand beside it
	program *goiptables.IPTables
}

// suffixes are the names under which the flavors are installed, after iptables or ip6tables.
var suffixes = []string{"", "-nft", "-legacy"}

// candidates are the tools that are installed for a family, one for each flavor, that of the plain name first.
func candidates(f family) []*tool {
	var tools []*tool
	for _, suffix := range suffixes {
		path, err := exec.LookPath(f.program() + suffix)
		if err != nil {
			continue
		}
		if _, err := exec.LookPath(path + "-restore"); err != nil {
			continue
		}
		flavor, err := flavorOf(path)
		if err != nil || slices.ContainsFunc(tools, func(t *tool) bool { return t.flavor == flavor }) {
			continue
		}
		protocol := goiptables.ProtocolIPv4
		if f == v6 {
			protocol = goiptables.ProtocolIPv6
		}
		program, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Timeout(int(lockWait.Seconds())), goiptables.Path(path))
		if err != nil {
			continue
		}
		tools = append(tools, &tool{family: f, flavor: flavor, path: path, program: program})
	}
	return tools
}

// flavorOf asks a program: it says so behind its version, and programs that do not are older than the other flavor.
func flavorOf(path string) (Flavor, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	switch {
	case err != nil:
		return "", fmt.Errorf("%s --version: %w", path, err)
	case strings.Contains(string(out), "nf_tables"):
		return NFT, nil
	default:
		return Legacy, nil
	}
}

// choose returns the tool of a family that works, of the wanted flavor, by writing with it.
func choose(ctx context.Context, f family, want Flavor, n names) (*tool, error) {
	var errs []error
	for _, t := range candidates(f) {
		if want != Auto && want != t.flavor {
			continue
		}
		err := t.try(ctx, n)
		if err == nil {
			return t, nil
		}
		errs = append(errs, fmt.Errorf("%s (%s) does not work here: %w", t.path, t.flavor, err))
	}
	if len(errs) == 0 {
		what := f.program()
		if want != Auto {
			what += " of the flavor " + string(want)
		}
		return nil, fmt.Errorf("%s is not installed", what)
	}
	return nil, errors.Join(errs...)
}

// try makes the kernel take, and give up, a chain with the matches and targets that we use. Modules that are there
// prove nothing, and those that are missing may be loaded by trying.
func (t *tool) try(ctx context.Context, n names) error {
	chain := n.base("TRY")
	nat := chain + ` -m conntrack --ctstate DNAT -m statistic --mode random --probability 0.5 -m comment --comment "trying" -j MARK --set-xmark 0x4000/0x4000`
	make, remove := &strings.Builder{}, &strings.Builder{}
	fmt.Fprintf(make, "*nat\n:%[1]s - [0:0]\n-A %[2]s\n-A %[1]s -m addrtype --src-type LOCAL -j CONNMARK --set-xmark 0x4000/0x4000\nCOMMIT\n", chain, nat)
	fmt.Fprintf(make, "*filter\n:%[1]s - [0:0]\n-A %[1]s -m connmark --mark 0x4000/0x4000 -j REJECT\nCOMMIT\n", chain)
	for _, table := range []string{"nat", "filter"} {
		fmt.Fprintf(remove, "*%[1]s\n:%[2]s - [0:0]\n-X %[2]s\nCOMMIT\n", table, chain)
	}
	if err := t.restore(ctx, make.String()); err != nil {
		return err
	}
	return t.restore(ctx, remove.String())
}

// restore runs the family's iptables-restore. Each table of the text is one transaction.
func (t *tool) restore(ctx context.Context, text string) error {
	args := []string{"--noflush", "-w", fmt.Sprint(int(lockWait.Seconds()))}
	_, err := t.run(ctx, t.path+"-restore", text, args...)
	return err
}

// save lists a table. It is not for the way of a change: its cost is that of all there is.
func (t *tool) save(ctx context.Context, table string) (string, error) {
	return t.run(ctx, t.path+"-save", "", "-t", table)
}

func (t *tool) run(ctx context.Context, program, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	// Being told to stop must not leave half a transaction: the program is given the time to end.
	cmd.Cancel = func() error { return os.ErrProcessDone }
	cmd.WaitDelay = lockWait + 10*time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if err := cmd.Run(); err != nil {
		if said := strings.TrimSpace(stderr.String()); said != "" {
			return "", fmt.Errorf("%s: %w: %s", program, err, oneLine(said))
		}
		return "", fmt.Errorf("%s: %w", program, err)
	}
	return stdout.String(), nil
}

// oneLine shortens what a program said.
func oneLine(said string) string {
	const most = 400
	said = strings.Join(strings.Fields(said), " ")
	return said[:min(len(said), most)]
}
