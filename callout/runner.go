// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

var (
	errNotStarted = errors.New("could not be started")
	errTimeout    = errors.New("killed, because it ran for longer than --timeout")
	errStopped    = errors.New("killed, because kpng is stopping")
)

// runner runs a program, once a call. Its life of one run:
//
//  1. The program starts as the leader of a process group of its own, so that it can be killed with all that it
//     started. Its standard output is our own, passed on as a file: nothing of it is held here, and a reader of
//     ours that does not read stops the program (which then runs into its timeout), not us.
//  2. The items are written into its standard input while it runs. A program is free not to read them.
//  3. Once it ran for too long, or we are stopping, the group gets SIGTERM, a grace, and SIGKILL.
//  4. It is not reaped before the group has been dealt with: until then no one else can be given its number.
//  5. What it left running (a daemon of its own session, a job in the background) is not waited for, even if
//     that holds our pipes open.
type runner struct {
	program *program
	stdout  *os.File
	say     func(line string) // told each line of the program's standard error

	timeout   time.Duration // of one run; 0: none
	stopGrace time.Duration // how long a run may go on once ctx has ended, before it gets SIGTERM
	killGrace time.Duration // between SIGTERM and SIGKILL
	waitDelay time.Duration // how long pipes may stay open once the program has exited
}

// run runs the program with env added to our environment and what feed writes as its standard input. It must be
// called from one and the same locked OS thread (see ownGroup).
//
// The error says how the program ended, without its name: errNotStarted, errTimeout, errStopped (by errors.Is) or
// an *exec.ExitError.
func (r *runner) run(ctx context.Context, env []string, feed func(io.Writer) error) error {
	cmd := exec.Command(r.program.path, r.program.args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = r.stdout
	stderr := &lineWriter{emit: r.say}
	cmd.Stderr = stderr
	cmd.SysProcAttr = ownGroup()
	cmd.WaitDelay = r.waitDelay

	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("%w: %w", errNotStarted, err)
	}
	if err := cmd.Start(); err != nil {
		return startError(err)
	}
	fed := make(chan error, 1)
	go func() {
		fed <- errors.Join(feed(stdin), stdin.Close())
	}()

	ended := r.supervise(ctx, cmd.Process)
	feedErr := r.endFeeding(stdin, fed)
	waitErr := cmd.Wait()
	stderr.flush()

	switch {
	case ended != nil:
		return ended
	case waitErr != nil && !errors.Is(waitErr, exec.ErrWaitDelay):
		return waitErr
	case feedErr != nil:
		return fmt.Errorf("its input could not be written: %w", feedErr)
	}
	return nil
}

// startError explains an error of exec.Cmd.Start.
func startError(err error) error {
	if errors.Is(err, syscall.ENOEXEC) {
		return fmt.Errorf("%w: %w; a script needs an interpreter in its first line, as #!/bin/sh", errNotStarted, err)
	}
	return fmt.Errorf("%w: %w", errNotStarted, err)
}

// supervise returns when the program has exited: nil when it did so by itself, else why it was killed.
func (r *runner) supervise(ctx context.Context, process *os.Process) error {
	exited := make(chan exit, 1)
	go func() { exited <- waitUnreaped(process) }()

	// What a shell that was killed leaves behind must not work beside the next run. What a program that
	// exited leaves behind, it left on purpose.
	natural := func(e exit) error {
		if e.signaled {
			signalGroup(process, syscall.SIGKILL)
		}
		return nil
	}

	timeout := after(r.timeout)
	var why error
	select {
	case e := <-exited:
		return natural(e)
	case <-timeout:
		why = errTimeout
	case <-ctx.Done():
		select {
		case e := <-exited:
			return natural(e)
		case <-timeout:
		case <-time.After(r.stopGrace):
		}
		why = errStopped
	}

	signalGroup(process, syscall.SIGTERM)
	select {
	case e := <-exited:
		exited <- e
	case <-time.After(r.killGrace):
	}
	signalGroup(process, syscall.SIGKILL)
	<-exited
	return why
}

// endFeeding gives the writing of the input a moment to end, once the program has exited, and then ends it. A
// program that did not read all of its input is no error: head(1) is a program too.
func (r *runner) endFeeding(stdin io.Closer, fed <-chan error) error {
	var err error
	select {
	case err = <-fed:
	case <-time.After(r.waitDelay):
		_ = stdin.Close() // makes a blocked write return
		err = <-fed
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// after is time.After, but never for 0.
func after(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}
