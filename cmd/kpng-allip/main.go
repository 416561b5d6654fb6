// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command kpng-allip sends every packet of a service's external IPs to a pod on this node.
package main

import (
	"errors"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kpng/backends/allip"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/internal/process"
)

func main() { process.Execute(command()) }

func command() *cobra.Command {
	backend, runner, options := allip.New(), &client.Runner{}, &process.Options{}
	cmd := &cobra.Command{
		Use:  "kpng-allip",
		Args: cobra.NoArgs,
	}
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
	backend.Describe(cmd)
	flags := cmd.Flags()
	flags.SortFlags = false
	backend.BindFlags(flags)
	runner.BindFlags(flags)
	options.BindFlags(flags)
	return cmd
}
