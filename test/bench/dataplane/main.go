// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command dataplane measures kpng-nat, with kube-proxy beside it: both serve the same Services of the same real API
// server, each on a node of its own made of network namespaces. It prints Markdown: tables, ratios, and each goal
// with what was measured. It needs root.
//
//	go run ./test/bench/dataplane                  # some five minutes
//	go run ./test/bench/dataplane -large           # more Services for iptables and for the API server
//	go run ./test/bench/dataplane -run=control     # one of its parts: control, backend, traffic
//
// Whatever is measured is also checked with packets: that the Services are served, and that an endpoint which is down
// gets no connection. A proxy that does wrong ends the program with status 1; a goal that is missed does not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/internal/netlab"
	"sigs.k8s.io/kpng/test/bench/report"
)

// bench is what the parts share.
type bench struct {
	options
	*report.Report

	dir      string
	started  int // processes
	progress io.Writer
}

// options are what the flags set.
type options struct {
	programs, kubernetes string // folders
	output               string
	parts                []string
	only                 dataplane
	large                bool
	nice                 int
	changeCount, fewest  int
	changeTime           time.Duration
	patience             time.Duration
	rounds               int
	trafficTime          time.Duration
}

// The parts of the benchmark.
const (
	control = "control"
	backend = "backend"
	traffic = "traffic"
)

var parts = []string{control, traffic, backend}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dataplane:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	b := &bench{progress: os.Stderr}
	klog.LogToStderr(false) // of the server in this process
	klog.SetOutput(io.Discard)
	if err := b.flags(); err != nil {
		return err
	}
	if err := netlab.Privileged(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "kpng-dataplane-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	var closeReport func() error
	if b.Report, closeReport, err = report.Open(b.output); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeReport()) }()
	if b.programs == "" {
		if err := b.build(ctx); err != nil {
			return err
		}
	}
	b.Machine("kpng-nat and kube-proxy")
	b.Text("\nWhat is measured runs at niceness %d, the API server does not.", b.nice)
	if b.wants(control) || b.wants(traffic) {
		if err := b.withAPI(ctx); err != nil {
			return err
		}
	}
	b.before()
	if b.wants(backend) {
		if err := b.backendPart(ctx); err != nil {
			return err
		}
	}
	b.End()
	return nil
}

// flags parses the command line.
func (b *bench) flags() error {
	names := flag.String("run", strings.Join(parts, ","), "comma-separated parts to run")
	flag.StringVar(&b.output, "o", "", "also write the Markdown to this `file`")
	flag.StringVar(&b.programs, "kpng", "", "`directory` of kpng and kpng-nat; default: built from this tree")
	flag.StringVar(&b.kubernetes, "kubernetes", ".cache/bin", "`directory` of etcd, kube-apiserver and kube-proxy (make kubernetes)")
	flag.StringVar((*string)(&b.only), "dataplane", "", "measure control and backend on nftables, iptables-nft or iptables-legacy only")
	flag.BoolVar(&b.large, "large", false, "also 20,000 Services from the API server, and iptables with 5,000: some minutes more")
	flag.IntVar(&b.changeCount, "changes", 200, "changes to measure in each run")
	flag.IntVar(&b.fewest, "fewest", 5, "changes to measure even when they take longer than -change-time")
	flag.DurationVar(&b.changeTime, "change-time", 8*time.Second, "time for the changes of a run")
	flag.DurationVar(&b.patience, "patience", time.Minute, "how long to wait for a first sync")
	flag.IntVar(&b.nice, "nice", -20, "niceness of what is measured, where it may be set; the API server keeps that of the caller")
	flag.IntVar(&b.rounds, "rounds", 15, "rounds of traffic")
	flag.DurationVar(&b.trafficTime, "traffic-time", 300*time.Millisecond, "length of each measurement of traffic")
	flag.Parse()
	if flag.NArg() != 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	for _, name := range strings.Split(*names, ",") {
		if !slices.Contains(parts, name) {
			return fmt.Errorf("-run: there is no part %q, only %s", name, strings.Join(parts, ", "))
		}
		b.parts = append(b.parts, name)
	}
	for _, folder := range []*string{&b.kubernetes, &b.programs} {
		if *folder == "" {
			continue
		}
		var err error
		if *folder, err = filepath.Abs(*folder); err != nil {
			return err
		}
	}
	return nil
}

// build builds the programs as `make build` does.
func (b *bench) build(ctx context.Context) error {
	b.programs = filepath.Join(b.dir, "bin")
	if err := os.Mkdir(b.programs, 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.programs, "sigs.k8s.io/kpng/cmd/kpng", "sigs.k8s.io/kpng/cmd/kpng-nat")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, text)
	}
	return nil
}
