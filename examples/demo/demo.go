// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/kpng/internal/netlab"
)

// demo is one run.
type demo struct {
	root, bin string
	out       io.Writer
	steps     int

	dir      string // private; holds the manifests, kpng's socket and the logs
	world    *world
	programs *programs
	json     *program
}

// run is the whole demo. It returns the first step's error, after cleaning up.
func (d *demo) run(parent context.Context) (err error) {
	start := time.Now()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	if d.dir, err = os.MkdirTemp("", "kpng-demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	d.programs = &programs{ctx: ctx, cancel: cancel, dir: d.dir}

	err = d.play(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	if err != nil && parent.Err() == nil {
		fmt.Fprintf(d.out, "\n%s", d.programs.logs(25))
	}
	stopped := d.cleanUp()
	switch {
	case parent.Err() != nil: // whatever else went wrong was the interruption's doing
		return errors.New("interrupted")
	case err != nil:
		return err
	case stopped != nil:
		fmt.Fprintf(d.out, "\n%s", d.programs.logs(25))
		return stopped
	}
	fmt.Fprintf(d.out, "\nAll as it should be, in %s.\n", since(start))
	return nil
}

func (d *demo) play(ctx context.Context) error {
	for _, part := range []func(context.Context) error{
		d.buildNetwork, d.startSource, d.showJSON, d.startBackend, d.sendPackets, d.removePod, d.putBack,
	} {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) cleanUp() error {
	d.step("Clean up")
	stopped := d.check(d.programs.stop(), "kpng, kpng-json and kpng-callout stopped when asked to")
	if d.world != nil {
		d.world.Close()
	}
	return errors.Join(stopped, d.check(nil, "network namespaces are gone"))
}

func (d *demo) buildNetwork(ctx context.Context) (err error) {
	d.step("A network in namespaces of its own; nothing else on this machine changes")
	start := time.Now()
	d.world, err = newWorld()
	if err != nil {
		return d.check(err, "built")
	}
	d.programs.host = d.world.node
	w := d.world
	const row = "%-10s  %-12s  %-9s  %s"
	beside := func(pod *netlab.Host) string {
		return fmt.Sprintf("── %-9s  %s  %s", pod.Name, pod.Addr(false), pod.Addr(true))
	}
	d.say(row, w.client.Name, w.client.Addr(false), w.client.Addr(true), "routes both external IPs to this-node")
	for _, n := range []struct{ node, pod *netlab.Host }{{w.node, w.pod}, {w.farNode, w.far}} {
		d.say(row, n.node.Name, n.node.Addr(false), n.node.Addr(true), beside(n.pod))
	}
	if err := d.check(nil, "built in %s; a look inside: nsenter --net=%s", since(start), w.node.Path()); err != nil {
		return err
	}
	// The demo would show nothing if the pods could be reached without kpng.
	for _, ip := range externalIPs {
		if err := d.expectSilence(ctx, ip); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) startSource(context.Context) error {
	d.step("kpng on the manifests in examples/demo, on a unix socket")
	input := filepath.Join(d.dir, "manifests")
	if err := copyManifests(filepath.Join(d.root, "examples", "demo"), input); err != nil {
		return d.check(err, "manifests copied")
	}
	return d.start(nil, "kpng", "file", "-i", input, "--service-proxy-name=kpng-example", "to-api", "--listen", d.api())
}

func (d *demo) showJSON(ctx context.Context) (err error) {
	d.step("kpng-json, a backend that prints what this node gets")
	if err := d.start(nil, "kpng-json", "--api", d.api(), "--node-name", thisNode); err != nil {
		return err
	}
	d.json = d.programs.running[len(d.programs.running)-1]
	line, err := d.nextJSON(ctx)
	if err != nil {
		return d.check(err, "the state")
	}
	d.say("%s", pretty(line))
	local, all, err := countEndpoints(line)
	if err == nil && (local != 2 || all != 4) {
		err = fmt.Errorf("%d of them local", local)
	}
	return d.check(err, "%d endpoints, the two of %s are Local", all, localPod)
}

func (d *demo) startBackend(ctx context.Context) error {
	script := filepath.Join(d.root, "examples", "pipe-exec", "scripts", "kpng-example-allip")
	d.step("kpng-callout with examples/pipe-exec/scripts/kpng-example-allip, in %s", thisNode)
	env := []string{"CALLOUT=" + script, "XTABLES_LOCKFILE=" + filepath.Join(d.dir, "xtables.lock")}
	if err := d.start(env, "kpng-callout", "--api", d.api(), "--node-name", thisNode); err != nil {
		return err
	}
	start := time.Now()
	rules, err := d.awaitRules(ctx, true)
	d.say("%s", strings.Join(rules, "\n"))
	return d.check(err, "the rules are in %s's kernel after %s", thisNode, since(start))
}

func (d *demo) sendPackets(ctx context.Context) error {
	d.step("Packets from the client to the external IPs")
	return d.sendAll(ctx)
}

func (d *demo) sendAll(ctx context.Context) error {
	for _, ip := range externalIPs {
		for _, p := range []netlab.Probe{
			{Network: "tcp", To: netip.AddrPortFrom(ip, servicePort)},
			{Network: "udp", To: netip.AddrPortFrom(ip, servicePort)},
			{Network: "tcp", To: netip.AddrPortFrom(ip, otherPort)},
			{Network: "icmp", To: netip.AddrPortFrom(ip, 0)},
		} {
			a, err := d.world.client.Probe(ctx, p)
			if err == nil && a.Host != localPod {
				err = fmt.Errorf("want an answer from %s", localPod)
			}
			if client := d.world.client.Addr(ip.Is6()); err == nil && a.Client.Addr() != client {
				err = fmt.Errorf("want the client's own address %s seen", client)
			}
			answer := ""
			if a.Host != "" {
				answer = fmt.Sprintf("answered by %s, which saw the client as %s", a.Host, a.Client.Addr())
			}
			if err := d.check(err, "%-28s %s", describe(p), answer); err != nil {
				return err
			}
		}
	}
	return nil
}

func describe(p netlab.Probe) string {
	switch p.Network {
	case "icmp":
		return "ping " + p.To.Addr().String()
	case "udp":
		return "UDP datagram " + p.To.String()
	}
	return "TCP " + p.To.String()
}

func (d *demo) removePod(ctx context.Context) error {
	d.step("Take %s's endpoints out of the manifest", localPod)
	file := filepath.Join(d.dir, "manifests", slicesFile)
	manifest, err := os.ReadFile(file)
	if err != nil {
		return d.check(err, "the manifest")
	}
	edited, removed, err := withoutNode(manifest, thisNode)
	start := time.Now()
	if err == nil {
		err = replaceFile(file, edited)
	}
	if err := d.check(err, "%s edited: %s removed", slicesFile, strings.Join(removed, " and ")); err != nil {
		return err
	}
	rules, err := d.awaitRules(ctx, false)
	if err := d.check(err, "the rules are gone after %s", since(start)); err != nil {
		d.say("%s", strings.Join(rules, "\n"))
		return err
	}
	line, err := d.nextJSON(ctx)
	if err != nil {
		return d.check(err, "kpng-json")
	}
	local, all, err := countEndpoints(line)
	if err == nil && (local != 0 || all != 2) {
		err = fmt.Errorf("%d endpoints, %d of them local", all, local)
	}
	if err := d.check(err, "kpng-json printed the change: 2 endpoints, none Local"); err != nil {
		return err
	}
	for _, ip := range externalIPs {
		if err := d.expectSilence(ctx, ip); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) putBack(ctx context.Context) error {
	d.step("Put them back")
	original, err := os.ReadFile(filepath.Join(d.root, "examples", "demo", slicesFile))
	start := time.Now()
	if err == nil {
		err = replaceFile(filepath.Join(d.dir, "manifests", slicesFile), original)
	}
	if err == nil {
		_, err = d.awaitRules(ctx, true)
	}
	if err := d.check(err, "the rules are back after %s", since(start)); err != nil {
		return err
	}
	return d.sendAll(ctx)
}

// api is where kpng listens.
func (d *demo) api() string { return "unix://" + filepath.Join(d.dir, "kpng.sock") }

func (d *demo) start(env []string, name string, args ...string) error {
	_, err := d.programs.start(env, filepath.Join(d.bin, name), args...)
	shown := strings.ReplaceAll(strings.Join(args, " "), d.dir, "$TMP")
	return d.check(err, "started %s %s", name, shown)
}

// nextJSON waits for the next line of kpng-json.
func (d *demo) nextJSON(ctx context.Context) (string, error) {
	select {
	case line := <-d.json.lines:
		return line, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-time.After(patience):
		return "", errors.New("kpng-json printed nothing")
	}
}

// awaitRules waits until the node's nat tables have rules for both external IPs, or for neither.
func (d *demo) awaitRules(ctx context.Context, present bool) (rules []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("no change of the rules in time"))
	defer cancel()
	for {
		rules4, has4, err4 := d.natRules(ctx, "iptables", externalIPs[0])
		rules6, has6, err6 := d.natRules(ctx, "ip6tables", externalIPs[1])
		rules = append(rules4, rules6...)
		if err := errors.Join(err4, err6); err != nil && ctx.Err() == nil {
			return rules, err
		}
		if has4 == present && has6 == present {
			return rules, nil
		}
		select {
		case <-ctx.Done():
			return rules, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// natRules reads the node's rules, and tells whether any is about an address.
func (d *demo) natRules(ctx context.Context, iptables string, about netip.Addr) (rules []string, has bool, err error) {
	out, err := d.world.node.Command(ctx, iptables, "-w", "5", "-t", "nat", "-S").CombinedOutput()
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w: %s", iptables, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "-A") {
			rules = append(rules, iptables+" -t nat "+strings.TrimSpace(line))
			has = has || strings.Contains(line, " "+about.String()+"/")
		}
	}
	return rules, has, nil
}

// expectSilence checks that no pod answers at an external IP.
func (d *demo) expectSilence(ctx context.Context, ip netip.Addr) error {
	for _, network := range []string{"tcp", "udp", "icmp"} {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		a, err := d.world.client.Probe(short, netlab.Probe{Network: network, To: netip.AddrPortFrom(ip, servicePort)})
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			return d.check(fmt.Errorf("answered by %s", a), "%s: %s is not answered", ip, network)
		}
	}
	return d.check(nil, "%s: nobody answers TCP, UDP or ping", ip)
}

func countEndpoints(line string) (local, all int, err error) {
	var item struct {
		Endpoints []struct{ Local bool }
	}
	if err := json.Unmarshal([]byte(line), &item); err != nil {
		return 0, 0, fmt.Errorf("not JSON: %w", err)
	}
	for _, e := range item.Endpoints {
		if e.Local {
			local++
		}
	}
	return local, len(item.Endpoints), nil
}
