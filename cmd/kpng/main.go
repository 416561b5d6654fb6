// SPDX-License-Identifier: Apache-2.0

// Command kpng watches Services and their endpoints and streams to each node what it needs to know.
package main

import (
	"github.com/spf13/cobra"

	"sigs.k8s.io/kpng/internal/process"
)

func main() {
	process.Execute(rootCommand())
}

func rootCommand() *cobra.Command {
	options := &process.Options{}
	root := &cobra.Command{
		Use:   "kpng",
		Short: "Kubernetes Proxy NG: feed specialised service proxies that live beside kube-proxy",
		Long: `kpng reads Services and their endpoints from a source and hands them on to a sink:

  kpng SOURCE SINK

A Service labelled service.kubernetes.io/service-proxy-name is ignored by kube-proxy. kpng picks the ones with a
given name and tells each node over gRPC which of their endpoints it may use; a backend (kpng-json, kpng-callout,
your own) turns that into kernel rules or anything else.`,
		Example: `  # serve the Services labelled with the proxy name "sip" on 127.0.0.1:12090
  kpng kube --service-proxy-name=sip to-api

  # the same from manifests, without a cluster
  kpng file -i examples/demo --service-proxy-name=kpng-example to-api

  # one process, no API: run a script at every change
  kpng kube --service-proxy-name=sip to-local to-callout -- /usr/local/bin/sip-rules`,
	}
	options.BindFlags(root.PersistentFlags())
	root.AddCommand(sourceCommands(options)...)
	root.AddCommand(localCommand(options))
	return root
}
