// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// reexecEnv tells a process that it was started by EnsurePrivilege, so that it does not try again.
const reexecEnv = "KPNG_NETLAB_REEXEC"

// Privileged is nil where this process may make labs.
func Privileged() error {
	res := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		res <- tryNamespace()
	}()
	return <-res
}

// tryNamespace enters a new namespace and comes back.
func tryNamespace() error {
	home, err := openThreadNS()
	if err != nil {
		return err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("netlab: network namespaces are not allowed here (%w): run as root, or allow user namespaces", err)
	}
	if err := netns.Set(home); err != nil {
		panic(fmt.Sprintf("netlab: cannot leave a network namespace: %v", err))
	}
	return nil
}

// EnsurePrivilege is for the start of main or TestMain. Where this process may make labs it does nothing. Elsewhere it runs the
// same program again as root of a new user namespace (with mounts and a network of its own, which has nothing in it),
// waits for it, and exits with its status: so it returns only where labs can be made, or with an error that says why they cannot.
func EnsurePrivilege() error {
	denied := Privileged()
	if denied == nil {
		return nil
	}
	if os.Getenv(reexecEnv) != "" {
		return denied
	}
	code, err := runAgain()
	if err != nil {
		return fmt.Errorf("%w (%w)", denied, err)
	}
	os.Exit(code)
	return nil
}

// runAgain runs this program as root of a new user namespace and returns its exit status.
func runAgain() (status int, err error) {
	// The parent-death signal is bound to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), reexecEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGTERM,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("a user namespace could not be made: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for s := range signals {
			// From a terminal the whole process group was told already; one more does no harm.
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("running again in a user namespace: %w", err)
	}
	if status = cmd.ProcessState.ExitCode(); status < 0 { // ended by a signal: what a shell says then
		status = 128 + int(cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	}
	return status, nil
}
