// SPDX-License-Identifier: Apache-2.0

// Package proc runs the programs of an end-to-end test: real processes whose output is kept, who are ended by their
// process id, and who do not outlive the test process even when it is killed.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Spec says what to run.
type Spec struct {
	Path  string
	Args  []string
	Env   []string // added to the environment of the test, a later entry wins
	Dir   string
	Stdin io.Reader
	// Stdout, when not nil, gets what the program writes to its standard output, and Process.Stdout does not.
	Stdout *os.File
}

// Process is a started program.
type Process struct {
	Name   string
	Stdout *Buffer
	Stderr *Buffer

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// spawn runs a function on a thread that never ends: the kernel sends Pdeathsig when the *thread* that started the
// child ends, and a test that locks its goroutine to a thread (to change the network namespace, say) ends that thread.
var spawn = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// Start starts the program; its output is gathered in Stdout and Stderr.
func Start(spec Spec) (*Process, error) {
	p := &Process{
		Name:   spec.Path,
		Stdout: &Buffer{},
		Stderr: &Buffer{},
		cmd:    exec.Command(spec.Path, spec.Args...),
		done:   make(chan struct{}),
	}
	p.cmd.Dir = spec.Dir
	p.cmd.Env = append(os.Environ(), spec.Env...)
	p.cmd.Stdin = spec.Stdin
	p.cmd.Stdout = p.Stdout
	if spec.Stdout != nil {
		p.cmd.Stdout = spec.Stdout
	}
	p.cmd.Stderr = p.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	// A grandchild that keeps the output open must not keep Wait from returning.
	p.cmd.WaitDelay = 2 * time.Second

	started := make(chan error)
	spawn() <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	go func() {
		defer close(p.done)
		// The exit status is in cmd.ProcessState; that output was cut off after WaitDelay is no fault of the program.
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal; none when the process has ended.
func (p *Process) Signal(sig os.Signal) {
	if p.Running() {
		_ = p.cmd.Process.Signal(sig)
	}
}

// ErrTimeout is returned by Wait when the process still runs.
var ErrTimeout = errors.New("still running")

// Wait waits for the end of the process and returns its exit status: -1 when a signal ended it.
func (p *Process) Wait(timeout time.Duration) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(timeout):
		return 0, fmt.Errorf("%s: %w after %s", p.Name, ErrTimeout, timeout)
	}
}

// Kill ends the process at once, with those it started that are still in its process group, and waits for its end.
func (p *Process) Kill() {
	if p.Running() {
		_ = syscall.Kill(-p.Pid(), syscall.SIGKILL)
	}
	<-p.done
}

// Stop asks the process to end, and kills it when it has not ended within the time.
func (p *Process) Stop(timeout time.Duration) {
	p.Signal(syscall.SIGTERM)
	if _, err := p.Wait(timeout); err != nil {
		p.Kill()
	}
}

// Buffer gathers what a program writes, and can be read meanwhile.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
