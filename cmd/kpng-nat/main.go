// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command kpng-nat serves services as kube-proxy does.
package main

import (
	"errors"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kpng/backends/nat"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/internal/process"
)

func main() { process.Execute(command()) }

func command() *cobra.Command {
	backend, runner, options := nat.New(), &client.Runner{}, &process.Options{}
	cmd := &cobra.Command{
		Use:  "kpng-nat",
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(options.Validate(), backend.Validate()); err != nil {
			return err
		}
		for pattern, handler := range backend.Handlers() {
			options.Handle(pattern, handler)
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
