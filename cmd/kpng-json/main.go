// SPDX-License-Identifier: Apache-2.0

// Command kpng-json prints what kpng tells this node as JSON.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kpng/backends/json"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/internal/process"
)

func main() {
	process.Execute(command())
}

func command() *cobra.Command {
	backend, runner, options := &json.Cmd{}, &client.Runner{}, &process.Options{}
	cmd := &cobra.Command{
		Use:  "kpng-json",
		Args: cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := backend.Validate(); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(cmd.Context())
		defer cancel()
		if err := options.Start(ctx, runner.Ready); err != nil {
			return err
		}
		// Without this, `kpng-json | head -1` would last until something changes.
		go func() {
			if waitForReader(ctx, os.Stdout) {
				cancel()
			}
		}()
		return runner.RunCmd(ctx, backend)
	}
	backend.Describe(cmd)
	flags := cmd.Flags()
	flags.SortFlags = false
	backend.BindFlags(flags)
	runner.BindFlags(flags)
	options.BindFlags(flags)
	return cmd
}
