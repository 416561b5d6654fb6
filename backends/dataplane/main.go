// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dataplane

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/internal/process"
	"sigs.k8s.io/kpng/internal/program"
)

// Main is a whole program: it parses the flags, connects to kpng, and writes, until a signal ends it. It does not return.
// The status is 0, or 1 after one line on standard error.
func (b Backend) Main() { process.Execute(b.Command()) }

// Command is the command for a program that has others too. It wants a context that ends when the program is to end.
func (b Backend) Command() *cobra.Command {
	cmd := program.Command(b.Name, b.New())
	cmd.Short, cmd.Long = b.Short, b.Long
	return cmd
}

// noFlags are the flags of a backend that has none of its own.
type noFlags struct{}

func (noFlags) BindFlags(*pflag.FlagSet) {}
func (noFlags) Validate() error          { return nil }
