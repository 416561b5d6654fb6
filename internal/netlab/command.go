// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"syscall"
)

// Cmd is an [exec.Cmd] that starts inside a host. All fields and methods are those of exec.Cmd.
type Cmd struct {
	*exec.Cmd
	host *Host
}

// Command is [exec.CommandContext] for a program inside the host. The kernel kills the program (SIGKILL)
// when the lab closes or this process dies, so nothing it starts outlives the lab; its own children are its own care.
func (h *Host) Command(ctx context.Context, name string, args ...string) *Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &Cmd{Cmd: cmd, host: h}
}

// Start is exec.Cmd's, inside the host.
func (c *Cmd) Start() error {
	// A child inherits the namespace of the thread that forks it.
	return c.host.onAnchor(c.Cmd.Start)
}

// Run is exec.Cmd's, inside the host.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output is exec.Cmd's, inside the host.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("netlab: Stdout already set")
	}
	var stdout, stderr bytes.Buffer
	c.Stdout = &stdout
	own := c.Stderr == nil
	if own {
		c.Stderr = &stderr
	}
	err := c.Run()
	var exit *exec.ExitError
	if own && errors.As(err, &exit) {
		exit.Stderr = stderr.Bytes()
	}
	return stdout.Bytes(), err
}

// CombinedOutput is exec.Cmd's, inside the host.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("netlab: Stdout or Stderr already set")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}
