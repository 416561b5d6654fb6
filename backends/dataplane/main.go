// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dataplane

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/internal/process"
)

// Main is a whole program: it parses the flags, connects to kpng, and writes, until a signal ends it. It does not return.
// The status is 0, or 1 after one line on standard error.
func (b Backend) Main() { process.Execute(b.Command()) }

// Command is the command for a program that has others too. It wants a context that ends when the program is to end.
func (b Backend) Command() *cobra.Command {
	backend, runner, options := b.New(), &client.Runner{}, &process.Options{}
	cmd := &cobra.Command{Use: b.Name, Short: b.Short, Long: b.Long, Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(options.Validate(), backend.Validate()); err != nil {
			return err
		}
		ready := func() error { return errors.Join(runner.Ready(), backend.Ready()) }
		if err := options.Start(cmd.Context(), ready, backend.Collectors()...); err != nil {
			return err
		}
		return runner.RunCmd(cmd.Context(), backend)
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	backend.BindFlags(flags)
	runner.BindFlags(flags)
	options.BindFlags(flags)
	return cmd
}

// noFlags are the flags of a backend that has none of its own.
type noFlags struct{}

func (noFlags) BindFlags(*pflag.FlagSet) {}
func (noFlags) Validate() error          { return nil }
