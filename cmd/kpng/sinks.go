// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kpng/server/dump"
	"sigs.k8s.io/kpng/server/serve"
	"sigs.k8s.io/kpng/server/store"
)

func sinkCommands(p *pipeline) []*cobra.Command {
	return []*cobra.Command{toAPICommand(p), toFileCommand(p), toLocalCommand(p)}
}

func toAPICommand(p *pipeline) *cobra.Command {
	config := &serve.Config{}
	cmd := &cobra.Command{
		Use:   "to-api",
		Short: "Serve the state over gRPC",
		Long: `Serve localv1, what one node needs to know, and globalv1, what another kpng needs to know.

By default only this machine can connect. An address that others can reach needs TLS, best with --listen-tls-ca, so
that only clients with a certificate of yours can connect.`,
		Example: `  kpng kube --service-proxy-name=sip to-api --listen unix:///run/kpng/api.sock
  kpng kube to-api --listen tcp://0.0.0.0:12090 --listen-tls-key tls.key --listen-tls-crt tls.crt --listen-tls-ca ca.crt`,
		Args: cobra.NoArgs,
	}
	config.BindFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		st := store.New()
		server, err := serve.New(config, st)
		if err != nil {
			return err
		}
		to := func(ctx context.Context, _ *store.Store, _ func() error) error { return server.Run(ctx) }
		return p.run(cmd.Context(), st, to, server)
	}
	return cmd
}

func toFileCommand(p *pipeline) *cobra.Command {
	var output string
	var first once
	cmd := &cobra.Command{
		Use:   "to-file",
		Short: "Write the state to a YAML file at every change",
		Long:  `Write the whole state as YAML, replacing the file atomically at every change. "kpng file" reads it back.`,
		Example: `  kpng kube --service-proxy-name=sip to-file -o state.yaml
  kpng file -i state.yaml to-api`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the file to write")
	first.bindFlags(cmd.Flags(), "end after the first whole state is written")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output == "" {
			return errors.New("--output: the name of a file is missing")
		}
		return p.run(cmd.Context(), store.New(), first.then(func(ctx context.Context, st *store.Store) error {
			return dump.Follow(ctx, st, output, first.set)
		}))
	}
	return cmd
}
