// SPDX-License-Identifier: Apache-2.0

// Command kpng-callout runs a program with the state of its node as JSON, at every change.
package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kpng/callout"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/internal/process"
)

func main() { process.Execute(command()) }

func command() *cobra.Command {
	var (
		backend = callout.New()
		runner  = &client.Runner{}
		options = &process.Options{}
	)
	cmd := &cobra.Command{
		Use: "kpng-callout",
		Example: `  CALLOUT=jq kpng-callout
  kpng-callout -- jq -r '.Service.Name'
  CALLOUT=kpng-example-allip kpng-callout --resync=5m
  kpng-callout --per-service -- sh -c 'echo $KPNG_REASON; jq -c .Service.IPs'
  kpng-callout --once -- wc -l`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(options.Validate(), backend.SetArgs(args)); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			backend.OutputClosed = cancel
			ready := func() error { return errors.Join(runner.Ready(), backend.Ready()) }
			if err := options.Start(ctx, ready, backend.Collectors()...); err != nil {
				return err
			}
			return runner.RunCmd(ctx, backend)
		},
	}
	backend.Describe(cmd)
	flags := cmd.Flags()
	flags.SortFlags = false
	backend.BindFlags(flags)
	runner.BindFlags(flags)
	options.BindFlags(flags)
	return cmd
}
