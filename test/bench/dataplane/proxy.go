// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kpng/internal/netlab"
	"sigs.k8s.io/kpng/test/bench/usage"
)

// dataplane is what a proxy programs.
type dataplane string

const (
	nftables       dataplane = "nftables"
	iptablesNFT    dataplane = "iptables-nft"
	iptablesLegacy dataplane = "iptables-legacy"
)

// kind is one of the programs that are compared.
type kind string

const (
	kubeProxy kind = "kube-proxy"
	kpng      kind = "kpng to-nat" // the source and the backend in one process
	kpngNat   kind = "kpng-nat"    // the backend alone
)

// proxy is a program with the dataplane it is to program.
type proxy struct {
	kind      kind
	dataplane dataplane
}

func (p proxy) String() string { return fmt.Sprintf("%s, %s", p.kind, p.dataplane) }

// command is the program and its arguments.
func (b *bench) command(p proxy, from source) (path string, args []string) {
	switch p.kind {
	case kubeProxy:
		mode, _, _ := strings.Cut(string(p.dataplane), "-")
		return filepath.Join(b.kubernetes, "kube-proxy"), []string{
			"--kubeconfig=" + from.(*apiSource).Kubeconfig, "--hostname-override=" + nodeName, "--proxy-mode=" + mode,
			"--cluster-cidr=" + podCIDR, "--oom-score-adj=0",
			// By default it waits so that no second is without a pause: that is not what is measured.
			"--iptables-min-sync-period=1ms",
			// These are of the whole machine, and a namespace may not set them.
			"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
		}
	case kpng:
		return filepath.Join(b.programs, "kpng"), append([]string{
			"kube", "--kubeconfig=" + from.(*apiSource).Kubeconfig, "to-local", "to-nat",
		}, backendFlags(p.dataplane)...)
	default:
		return filepath.Join(b.programs, "kpng-nat"), append(backendFlags(p.dataplane), "--api=unix://"+from.(*storeSource).socket)
	}
}

func backendFlags(d dataplane) []string {
	name, flavor, iptables := strings.Cut(string(d), "-")
	flags := []string{"--node-name=" + nodeName, "--dataplane=" + name, "--cluster-cidr=" + podCIDR}
	if iptables {
		flags = append(flags, "--iptables-flavor="+flavor)
	}
	return flags
}

// running is a proxy on a node of its own.
type running struct {
	proxy
	node     *node
	cmd      *netlab.Cmd
	log      string
	services int
	ended    chan struct{}
}

// start starts a proxy on a node and returns when it serves the last of so many Services.
func (b *bench) start(ctx context.Context, p proxy, n *node, from source, services int) (r *running, took time.Duration, err error) {
	if a, ok := from.(*apiSource); ok {
		if err := n.relay(strings.TrimPrefix(a.URL, "https://")); err != nil {
			return nil, 0, err
		}
	}
	path, args := b.command(p, from)
	r = &running{proxy: p, node: n, services: services, ended: make(chan struct{})}
	r.cmd = n.router.Command(ctx, path, args...)
	b.started++
	r.log = filepath.Join(b.dir, fmt.Sprintf("%s-%d.log", filepath.Base(path), b.started))
	file, err := os.Create(r.log)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	r.cmd.Stdout, r.cmd.Stderr = file, file
	began := time.Now()
	if err := r.cmd.Start(); err != nil {
		return nil, 0, err
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // when it ended is what matters
	}()
	if err := r.serves(ctx, services-1, b.patience); err != nil {
		r.kill()
		return nil, 0, err
	}
	took = time.Since(began)
	for k := range sample {
		if err := r.serves(ctx, k*services/sample, limit); err != nil {
			r.kill()
			return nil, 0, err
		}
	}
	return r, took, nil
}

// sample is how many Services are looked at beside the last one: they must be served too.
const sample = 20

// serves waits until a Service answers.
func (r *running) serves(ctx context.Context, service int, within time.Duration) error {
	for end := time.Now().Add(within); ; {
		began := time.Now()
		_, err := r.node.answers(ctx, serviceAddress(service), probeTime)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return errTooSlow{fmt.Errorf("%s does not serve %s within %v: %w\n%s", r.proxy, serviceName(service), within, err, r.lastWords())}
		}
		select {
		case <-r.ended:
			return fmt.Errorf("%s has ended:\n%s", r.proxy, r.lastWords())
		case <-time.After(probeTime - time.Since(began)):
		}
	}
}

// errTooSlow is that a proxy did not get done in time.
type errTooSlow struct{ error }

func (r *running) lastWords() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	const enough = 3000
	return string(text[max(0, len(text)-enough):])
}

// kill ends the proxy at once: its rules stay.
func (r *running) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.ended
}

// cpu is the processor time of the proxy and of the programs that it has run.
func (r *running) cpu() time.Duration {
	pid := r.cmd.Process.Pid
	return usage.CPU(pid) + childrenCPU(pid)
}

// childrenCPU is the time of children that have ended, in ticks of 10 ms.
func childrenCPU(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name may have spaces and ends with a bracket; cutime and cstime are the 14th and 15th field after it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 15 {
		return 0
	}
	var sum time.Duration
	for _, field := range fields[13:15] {
		if ticks, err := strconv.Atoi(field); err == nil {
			sum += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	return sum
}

// hasChildren says whether the proxy waits for a program that it has run.
func (r *running) hasChildren() bool {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	return err == nil && slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && len(text) > 0
	})
}

func (r *running) resident() (now, peak int) { return usage.Resident(r.cmd.Process.Pid) }

// watch notes when the proxy writes.
func (r *running) watch() (*watcher, error) {
	if r.dataplane == iptablesLegacy {
		return watchLegacy(r.node.router)
	}
	return watchNFTables(r.node.router)
}
