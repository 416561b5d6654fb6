// SPDX-License-Identifier: Apache-2.0

// Package program makes a whole program of a backend's command: its flags, those of a client and those of a process.
package program

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/internal/process"
)

// Backend is what a program is made of. It may also have
//
//	Describe(cmd *cobra.Command)         // completes the command: texts for --help
//	Handlers() map[string]http.Handler   // pages beside the metrics, by pattern
type Backend interface {
	backendcmd.Cmd
	// Validate reports every fault of the flags at once.
	Validate() error
	// Collectors are the metrics.
	Collectors() []prometheus.Collector
	// Ready tells why the backend's work is not done, or nil.
	Ready() error
}

// Command is the command of that name. It takes no arguments.
func Command(name string, backend Backend) *cobra.Command {
	runner, options := &client.Runner{}, &process.Options{}
	cmd := &cobra.Command{Use: name, Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(options.Validate(), backend.Validate()); err != nil {
			return err
		}
		if h, ok := backend.(interface {
			Handlers() map[string]http.Handler
		}); ok {
			for pattern, handler := range h.Handlers() {
				options.Handle(pattern, handler)
			}
		}
		ready := func() error { return errors.Join(runner.Ready(), backend.Ready()) }
		if err := options.Start(cmd.Context(), ready, backend.Collectors()...); err != nil {
			return err
		}
		return runner.RunCmd(cmd.Context(), backend)
	}
	if described, ok := backend.(interface{ Describe(cmd *cobra.Command) }); ok {
		described.Describe(cmd)
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	backend.BindFlags(flags)
	runner.BindFlags(flags)
	options.BindFlags(flags)
	return cmd
}
