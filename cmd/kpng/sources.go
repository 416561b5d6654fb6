// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/internal/process"
	"sigs.k8s.io/kpng/server/source/api"
	"sigs.k8s.io/kpng/server/source/file"
	"sigs.k8s.io/kpng/server/source/kube"
	"sigs.k8s.io/kpng/server/store"
)

// source fills a store. Run blocks until its context ends, when it returns nil, or until it cannot go on. Ready
// tells why what the store holds may be out of date, or nil.
type source interface {
	Run(ctx context.Context, st *store.Store) error
	Ready() error
	Collectors() []prometheus.Collector
}

// configured is a source that is known by its flags so far.
type configured interface {
	BindFlags(flags *pflag.FlagSet)
	Validate() error
}

func sourceCommands(options *process.Options) []*cobra.Command {
	kubeConfig, fileConfig, apiConfig := &kube.Config{}, &file.Config{}, &api.Config{}
	return []*cobra.Command{
		sourceCommand(options, &cobra.Command{
			Use:   "kube",
			Short: "Read from the Kubernetes API",
			Long: `Watch Services, EndpointSlices and Nodes of a cluster. Only what is asked for is requested from the API
server: with --service-proxy-name, the Services with that label and their slices; without, those that kube-proxy serves.

It needs to list and watch services, endpointslices.discovery.k8s.io and nodes, and nothing else.`,
			Example: `  kpng kube --service-proxy-name=kpng-example to-api
  kpng kube --kubeconfig ~/.kube/config to-local to-json --node-name=node1`,
		}, kubeConfig, func() (source, error) { return kube.New(kubeConfig) }),
		sourceCommand(options, &cobra.Command{
			Use:   "file",
			Short: "Read from manifests, or from a dump that to-file wrote",
			Long: `Read Services, EndpointSlices and Nodes from a file or a directory of ordinary manifests (YAML or JSON), and
follow their edits. An edit that cannot be read is reported; the last good state stays.`,
			Example: `  kpng file -i examples/demo --service-proxy-name=kpng-example to-api`,
		}, fileConfig, func() (source, error) { return file.New(fileConfig) }),
		sourceCommand(options, &cobra.Command{
			Use:   "api",
			Short: "Read from another kpng",
			Long: `Follow the globalv1 API of another kpng. So one central kpng can serve a kpng on each of many nodes, and only
the central one watches the Kubernetes API.`,
			Example: `  kpng api --api central:12090 --tls-ca ca.crt --tls-crt node.crt --tls-key node.key to-api --listen unix:///run/kpng.sock`,
		}, apiConfig, func() (source, error) { return api.New(apiConfig) }),
	}
}

// sourceCommand completes the command of a source: its flags, which may also follow the sink's name, and the sinks.
func sourceCommand(options *process.Options, cmd *cobra.Command, config configured, open func() (source, error)) *cobra.Command {
	config.BindFlags(cmd.PersistentFlags())
	cmd.AddCommand(sinkCommands(&pipeline{options: options, open: open})...)
	return cmd
}
