// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sigs.k8s.io/kpng/internal/netlab"
)

// programs are what the demo runs in a host. The first that ends before its time ends the demo, by ctx.
type programs struct {
	host *netlab.Host
	dir  string // for their logs

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	stopping bool
	running  []*program
}

type program struct {
	name  string
	cmd   *netlab.Cmd
	log   *os.File
	lines chan string // of its standard output
	done  chan struct{}
	err   error // how it ended, once done is closed
}

// start runs a program. Its log goes to a file, shown when something fails.
func (p *programs) start(env []string, name string, args ...string) (*program, error) {
	log, err := os.Create(filepath.Join(p.dir, filepath.Base(name)+".log"))
	if err != nil {
		return nil, err
	}
	// Not p.ctx: the programs are asked to stop, in order.
	cmd := p.host.Command(context.Background(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = log
	cmd.SysProcAttr.Setpgid = true // a Ctrl-C is ours to handle
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	prog := &program{name: filepath.Base(name), cmd: cmd, log: log, lines: make(chan string, 64), done: make(chan struct{})}
	p.mu.Lock()
	p.running = append(p.running, prog)
	p.mu.Unlock()
	go p.watch(prog, stdout)
	return prog, nil
}

// watch reads a program's output and waits for its end.
func (p *programs) watch(prog *program, stdout io.Reader) {
	sc := bufio.NewScanner(stdout)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		select {
		case prog.lines <- sc.Text():
		default: // nobody looks any more
		}
	}
	prog.err = prog.cmd.Wait()
	close(prog.done)
	p.mu.Lock()
	stopping := p.stopping
	p.mu.Unlock()
	if !stopping {
		p.cancel(fmt.Errorf("%s ended: %s", prog.name, status(prog.err)))
	}
}

// stop asks the programs to end, the last started first, and kills those that do not. It reports those
// that did not end well.
func (p *programs) stop() error {
	p.mu.Lock()
	p.stopping = true
	running := p.running
	p.running = nil
	p.mu.Unlock()
	var errs []error
	for _, prog := range slices.Backward(running) {
		_ = prog.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-prog.done:
		case <-time.After(5 * time.Second):
			_ = prog.cmd.Process.Kill()
			<-prog.done
			errs = append(errs, fmt.Errorf("%s did not stop when asked to", prog.name))
		}
		if prog.err != nil {
			errs = append(errs, fmt.Errorf("%s: %s", prog.name, status(prog.err)))
		}
		_ = prog.log.Close()
	}
	return errors.Join(errs...)
}

func status(err error) string {
	var exit *exec.ExitError
	if err == nil {
		return "exit status 0"
	}
	if errors.As(err, &exit) {
		return exit.Error()
	}
	return err.Error()
}

// logs are the last lines that each program logged.
func (p *programs) logs(lines int) string {
	files, _ := filepath.Glob(filepath.Join(p.dir, "*.log"))
	var b strings.Builder
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
		fmt.Fprintf(&b, "--- log of %s\n", strings.TrimSuffix(filepath.Base(f), ".log"))
		for _, l := range all[max(0, len(all)-lines):] {
			fmt.Fprintf(&b, "%s\n", l)
		}
	}
	return b.String()
}
