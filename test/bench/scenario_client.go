// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	"sigs.k8s.io/kpng/test/bench/report"
	"sigs.k8s.io/kpng/test/bench/usage"
)

// backendFlag is the first argument of a child process that is a backend: KIND SOCKET.
const backendFlag = "run-backend"

// jsonChanges is kpng-json when it prints what changed.
const jsonChanges = "kpng-json --output=changes"

// runBackend is a backend that does nothing with what it is given, so that what is measured is package client.
func runBackend(ctx context.Context, args []string) error {
	config := &localsink.Config{NodeName: nodeName(0)}
	called := func(n int) { fmt.Println(n) }
	var sink localsink.Sink
	switch args[0] {
	case "fullstate":
		full := fullstate.New(config)
		full.Callback = fullstate.ArrayCallback(func(items []*client.ServiceEndpoints) { called(len(items)) })
		sink = full
	case "changes":
		sink = changes.New(config, func(all []changes.Change) error { called(len(all)); return nil })
	default:
		return errors.New("unknown kind of backend " + args[0])
	}
	return newRunner(args[1]).Run(ctx, sink)
}

// clientScenario measures what a change costs a backend.
func (b *bench) clientScenario(ctx context.Context) error {
	b.Heading("What a change costs a backend")
	b.Text("Synthetic source, %d endpoints a Service, changes one at a time. A full-state backend is given everything at each change;\n"+
		"fullstate and changes are backends on package client that do nothing with what they are given. kpng-json prints everything at\n"+
		"each change, or, with --output=changes, what changed.\n", b.endpoints)
	b.Header("backend", "Services", "first state, CPU", "CPU a change", "resident (peak)")
	cost := map[string][]time.Duration{}
	for _, services := range b.clientServices {
		for _, kind := range []string{"fullstate", "changes", "kpng-json", jsonChanges} {
			each, err := b.clientRun(ctx, kind, services)
			if err != nil {
				return fmt.Errorf("%s at %d Services: %w", kind, services, err)
			}
			cost[kind] = append(cost[kind], each)
		}
	}
	if len(b.clientServices) < 2 {
		return nil
	}
	for _, kind := range []string{"changes", jsonChanges} {
		factor := cost[kind][len(cost[kind])-1].Seconds() / cost[kind][0].Seconds()
		b.Goal(factor <= 1.5, fmt.Sprintf("%s: CPU a change at %v Services", kind, b.clientServices), "flat (factor 1.5)", fmt.Sprintf("%.2f", factor))
	}
	return nil
}

func (b *bench) clientRun(ctx context.Context, kind string, services int) (each time.Duration, err error) {
	child, err := startSynthetic(b.dir, services, b.endpoints)
	if err != nil {
		return 0, err
	}
	defer child.end()
	backend, err := b.startBackend(ctx, kind, child.socket)
	if err != nil {
		return 0, err
	}
	defer backend.end()
	w := newWorld(services, b.endpoints)
	written, err := backend.settled(0)
	if err != nil {
		return 0, err
	}
	first := usage.CPU(backend.pid())
	wait, count := backend.more, 5*b.changes // so many that a garbage collection does not decide
	if kind == "kpng-json" {                 // what it writes at a change takes a while
		wait, count = backend.settled, min(b.changes, 10)
	}
	for n := range count {
		state, _ := w.toggle(n*37%services, n)
		if err := child.apply(state); err != nil {
			return 0, err
		}
		if written, err = wait(written); err != nil {
			return 0, err
		}
	}
	if _, err := backend.settled(written - 1); err != nil {
		return 0, err
	}
	each = (usage.CPU(backend.pid()) - first) / time.Duration(count)
	now, peak := usage.Resident(backend.pid())
	b.Row(kind, services, report.MS(first), report.MS(each), report.MB(now)+" ("+report.MB(peak)+")")
	return each, nil
}

func (b *bench) startBackend(ctx context.Context, kind, socket string) (*backend, error) {
	if !strings.HasPrefix(kind, "kpng-json") {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return startBackend(self, backendFlag, kind, socket)
	}
	if b.json == "" {
		var err error
		if b.json, err = build(ctx, b.dir, "kpng-json"); err != nil {
			return nil, err
		}
	}
	args := []string{"--api=unix://" + socket, "--node-name=" + nodeName(0)}
	if kind == jsonChanges {
		args = append(args, "--output=changes")
	}
	return startBackend(b.json, args...)
}

// backend is a process of which the amount of what it writes is of interest.
type backend struct {
	*exec.Cmd
	written atomic.Int64
}

// Write implements io.Writer for the process's output.
func (b *backend) Write(p []byte) (int, error) {
	b.written.Add(int64(len(p)))
	return len(p), nil
}

func startBackend(path string, args ...string) (*backend, error) {
	b := &backend{Cmd: exec.Command(path, args...)}
	b.Stdout, b.Stderr = b, os.Stderr
	b.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive a bench that is killed
	return b, b.Start()
}

func (b *backend) pid() int { return b.Process.Pid }

func (b *backend) end() {
	_ = b.Process.Kill()
	_ = b.Wait() // it says that the process was killed
}

// more waits until the backend has written more than it had.
func (b *backend) more(before int64) (now int64, err error) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Microsecond) {
		if now := b.written.Load(); now > before {
			return now, nil
		}
	}
	return 0, fmt.Errorf("%s writes nothing", b.Path)
}

// settled waits until the backend has written more than it had, and then nothing for a while.
func (b *backend) settled(before int64) (now int64, err error) {
	now, err = b.more(before)
	for err == nil {
		time.Sleep(300 * time.Millisecond)
		if b.written.Load() == now {
			return now, nil
		}
		now = b.written.Load()
	}
	return now, err
}
