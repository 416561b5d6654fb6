// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	// The backends register themselves.
	_ "sigs.k8s.io/kpng/backends/json"
	_ "sigs.k8s.io/kpng/callout"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/internal/process"
	"sigs.k8s.io/kpng/server/serve"
	"sigs.k8s.io/kpng/server/store"
)

// toLocalCommand runs a backend in the same process, without an API in between.
func toLocalCommand(p *pipeline) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "to-local",
		Short:   "Run a backend in this process, without an API in between",
		Example: `  kpng kube --service-proxy-name=sip to-local to-json`,
	}
	for _, use := range backendcmd.Registered() {
		var first once
		var profile string
		cmd.AddCommand(backendCommand("kpng kube to-local", use,
			func(flags *pflag.FlagSet) {
				first.bindFlags(flags, "end after the first whole state")
				flags.StringVar(&profile, "cpuprofile", "", "`file` to write a CPU profile to")
			},
			func(ctx context.Context, backend backendcmd.Cmd) error {
				to := first.then(func(ctx context.Context, st *store.Store) error {
					err := serve.InProcess(ctx, st, backend.Sink(), first.set)
					return finish(ctx, backend, err)
				})
				stopProfile, err := client.StartCPUProfile(profile)
				if err != nil {
					return err
				}
				defer stopProfile()
				if err := backendcmd.Prepare(ctx, backend); err != nil {
					return finish(ctx, backend, err)
				}
				return p.run(ctx, store.New(), to, backendPart{backend})
			}))
	}
	return cmd
}

// localCommand runs a backend against a kpng that serves localv1, as the backend's own binary does.
func localCommand(options *process.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "local",
		Short:   "Run a backend that is fed by a kpng elsewhere",
		Example: `  kpng local to-json --api unix:///run/kpng/api.sock`,
	}
	for _, use := range backendcmd.Registered() {
		runner := &client.Runner{}
		cmd.AddCommand(backendCommand("kpng local", use,
			func(flags *pflag.FlagSet) { runner.BindFlags(flags) },
			func(ctx context.Context, backend backendcmd.Cmd) error {
				if err := start(ctx, options, backendPart{backend}, runnerPart{runner}); err != nil {
					return err
				}
				return runner.RunCmd(ctx, backend)
			}))
	}
	return cmd
}

// backendCommand is the command of a backend after the words of before; bind adds the flags of what feeds it, run runs
// it.
func backendCommand(before string, use backendcmd.UseCmd, bind func(*pflag.FlagSet), run func(context.Context, backendcmd.Cmd) error) *cobra.Command {
	backend := use.New()
	cmd := &cobra.Command{
		Use:   use.Use,
		Short: fmt.Sprintf("Run the backend %s", use.Use),
	}
	if described, ok := backend.(interface{ Describe(cmd *cobra.Command) }); ok {
		described.Describe(cmd) // which knows the command's name alone
		cmd.Example = strings.ReplaceAll(cmd.Example, "  "+cmd.Name(), "  "+before+" "+cmd.Name())
	}
	backend.BindFlags(cmd.Flags())
	bind(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := prepare(backend, args); err != nil {
			return err
		}
		return run(cmd.Context(), backend)
	}
	return cmd
}

// prepare hands a backend its arguments, if it takes any, and lets it check its flags.
func prepare(backend backendcmd.Cmd, args []string) error {
	if takes, ok := backend.(interface{ SetArgs(args []string) error }); ok {
		if err := takes.SetArgs(args); err != nil {
			return err
		}
	} else if len(args) != 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	if checks, ok := backend.(interface{ Validate() error }); ok {
		return checks.Validate()
	}
	return nil
}

// finish lets a backend end the work that goes on after the last change, and returns the first thing that failed.
func finish(ctx context.Context, backend backendcmd.Cmd, err error) error {
	if errors.Is(err, localsink.ErrStop) {
		err = nil
	}
	if f, ok := backend.(backendcmd.Finisher); ok {
		err = errors.Join(err, f.Finish(ctx))
	}
	return err
}

// backendPart shows what a backend tells of itself; all of it is optional.
type backendPart struct{ backendcmd.Cmd }

func (b backendPart) Collectors() []prometheus.Collector {
	if c, ok := b.Cmd.(interface{ Collectors() []prometheus.Collector }); ok {
		return c.Collectors()
	}
	return nil
}

func (b backendPart) Handlers() map[string]http.Handler {
	if h, ok := b.Cmd.(interface {
		Handlers() map[string]http.Handler
	}); ok {
		return h.Handlers()
	}
	return nil
}

func (b backendPart) Ready() error {
	if r, ok := b.Cmd.(interface{ Ready() error }); ok {
		return r.Ready()
	}
	return nil
}

// runnerPart tells whether the stream from a kpng elsewhere is up to date.
type runnerPart struct{ *client.Runner }

func (runnerPart) Collectors() []prometheus.Collector { return nil }
