// SPDX-License-Identifier: Apache-2.0

// Command bench measures the real kpng on a real API server, and, at sizes that no API server can hold here, kpng's
// store and server behind a synthetic source. It prints Markdown: tables, and each goal with what was measured.
//
//	go run ./test/bench                  # all scenarios, some six minutes
//	go run ./test/bench -short           # smaller, about a minute
//	go run ./test/bench -run=table,storm # some of them
//
// What is fast and wrong is worth nothing, so every watcher checks what it is told (view.go) against an independent
// model (world.go): at every op, at every Sync, and at every quiet point. A state that is not right ends the program
// with status 1; a goal that is missed does not.
//
// Watchers live in this process, each with a connection of its own (stream.go, fleet.go). The server is a process of
// its own, whose processor time and memory are read from the kernel.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kpng/test/bench/apiserver"
	"sigs.k8s.io/kpng/test/bench/report"
)

// bench is what the scenarios share.
type bench struct {
	sizes
	*report.Report

	repo, dir string
	kpng      string // the binary
	json      string // that of kpng-json, once it is built
	profiles  string // where CPU profiles are written; empty: nowhere

	api   *apiServer // with world loaded; started by the first scenario that needs it
	world *world
}

// sizes are what the flags set.
type sizes struct {
	services, endpoints int
	watchers            []int
	changes             int
	flat                int // services of the large side
	unrelated           int
	stormRate           int
	stormTime           time.Duration
	tiers, tierWatchers int
	reconnecting        int
	clientServices      []int
}

type scenario struct {
	name string
	run  func(*bench, context.Context) error
}

var scenarios = []scenario{
	{"table", (*bench).table},
	{"storm", (*bench).stormScenario},
	{"restart", (*bench).restart},
	{"tiers", (*bench).tiersScenario},
	{"unrelated", (*bench).unrelatedScenario},
	{"flat", (*bench).flatScenario},
	{"client", (*bench).clientScenario},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == childFlag:
		err = serveSynthetic(ctx, os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == backendFlag:
		err = runBackend(ctx, os.Args[2:])
	default:
		err = run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	chosen, output, err := b.flags()
	if err != nil {
		return err
	}
	if b.repo, err = repository(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "kpng-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	var closeReport func() error
	if b.Report, closeReport, err = report.Open(output); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeReport()) }()
	if b.kpng == "" {
		if b.kpng, err = build(ctx, b.dir, "kpng"); err != nil {
			return err
		}
	}
	defer func() {
		if b.api != nil {
			err = errors.Join(err, b.api.Stop())
		}
	}()
	b.Machine("Benchmark of kpng")
	for _, s := range scenarios {
		if !chosen(s.name) {
			continue
		}
		start := time.Now()
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(os.Stderr, "(%s took %v)\n", s.name, time.Since(start).Round(time.Second))
	}
	b.End()
	return nil
}

// flags parses the command line.
func (b *bench) flags() (chosen func(string) bool, output string, err error) {
	short := flag.Bool("short", false, "smaller and shorter: about a minute")
	names := flag.String("run", "", "comma-separated scenarios: table, storm, restart, tiers, unrelated, flat, client; default: all")
	flag.StringVar(&output, "o", "", "also write the Markdown to this `file`")
	flag.StringVar(&b.kpng, "kpng", "", "kpng binary; default: built from this tree")
	flag.StringVar(&b.profiles, "profiles", "", "`directory` for CPU profiles of kpng")
	watchers := flag.String("watchers", "", "numbers of watchers in the table (default 1,10,100,1000)")
	clients := flag.String("client-services", "", "numbers of Services for the client scenario (default 1000,20000)")
	for _, f := range b.numbers() {
		flag.IntVar(f.to, f.name, 0, fmt.Sprintf("%s (default %d, with -short %d)", f.usage, f.long, f.short))
	}
	flag.DurationVar(&b.stormTime, "storm-time", 0, "length of the storm (default 15s, with -short 5s)")
	flag.Parse()
	for _, f := range b.numbers() {
		*f.to = choose(*f.to, *short, f.short, f.long)
	}
	b.stormTime = choose(b.stormTime, *short, 5*time.Second, 15*time.Second)
	b.watchers, err = numbers(choose(*watchers, *short, "1,100", "1,10,100,1000"))
	if err != nil {
		return nil, "", err
	}
	b.clientServices, err = numbers(choose(*clients, *short, "1000", "1000,20000"))
	if err != nil {
		return nil, "", err
	}
	if flag.NArg() != 0 {
		return nil, "", fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	return choice(*names)
}

type number struct {
	to          *int
	name, usage string
	short, long int
}

func (b *bench) numbers() []number {
	return []number{
		{&b.services, "services", "Services on the API server", 300, 1000},
		{&b.endpoints, "endpoints", "endpoints of each", 10, 10},
		{&b.changes, "changes", "changes to measure in each run", 20, 60},
		{&b.flat, "flat-services", "Services on the large side of the scenario flat", 10_000, 100_000},
		{&b.unrelated, "unrelated", "unrelated Services without a label", 300, 19_000},
		{&b.stormRate, "storm-rate", "changes a second in the storm", 200, 500},
		{&b.tiers, "tiers", "node-level kpngs", 4, 20},
		{&b.tierWatchers, "tier-watchers", "watchers of each", 10, 50},
		{&b.reconnecting, "reconnecting", "watchers that reconnect in the scenario restart", 200, 1000},
	}
}

// choose returns what was given, or else a default.
func choose[T comparable](given T, short bool, forShort, forLong T) T {
	var none T
	switch {
	case given != none:
		return given
	case short:
		return forShort
	default:
		return forLong
	}
}

func choice(names string) (func(string) bool, string, error) {
	known := map[string]bool{}
	for _, s := range scenarios {
		known[s.name] = names == ""
	}
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
		if _, ok := known[name]; !ok {
			return nil, "", fmt.Errorf("-run: there is no scenario %q", name)
		}
		known[name] = true
	}
	return func(name string) bool { return known[name] }, flag.Lookup("o").Value.String(), nil
}

func numbers(list string) (out []int, err error) {
	for _, text := range strings.Split(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a list of numbers", list)
		}
		out = append(out, n)
	}
	return out, nil
}

// repository is the folder of go.mod, here or above.
func repository() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.Join(err, errors.New("run this inside the repository"))
}

// withAPI starts the API server and loads the world into it, once.
func (b *bench) withAPI(ctx context.Context) error {
	if b.api != nil {
		return nil
	}
	dir := filepath.Join(b.dir, "cluster")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	server, err := apiserver.Start(ctx, filepath.Join(b.repo, ".cache", "bin"), dir)
	if err != nil {
		return err
	}
	b.api = &apiServer{Server: server}
	b.world = newWorld(b.services, b.endpoints)
	return b.api.load(ctx, b.world, namespace, labelled())
}
