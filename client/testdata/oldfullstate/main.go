// SPDX-License-Identifier: Apache-2.0

// Command oldfullstate is a backend as they were written for the retired project: registered as a command, told of
// the full state by a channel.
package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

type backend struct {
	cfg localsink.Config
}

func init() {
	backendcmd.Register("to-example", func() backendcmd.Cmd { return &backend{} })
}

func (b *backend) BindFlags(flags *pflag.FlagSet) { b.cfg.BindFlags(flags) }

func (b *backend) Sink() localsink.Sink {
	sink := fullstate.New(&b.cfg)
	sink.Callback = callback
	sink.SetupFunc = func() { fmt.Println("prerun") }
	return sink
}

func callback(ch <-chan *client.ServiceEndpoints) {
	for item := range ch {
		for _, ep := range item.Endpoints {
			fmt.Printf("%s: %s %v\n", item.Service.NamespacedName(), ep.IPs.First(), ep.PortMappings(item.Service.Ports))
		}
	}
}

func main() {
	for _, use := range backendcmd.Registered() {
		backend := use.New()
		runner := client.Runner{}
		cmd := &cobra.Command{
			Use: use.Use,
			Run: func(_ *cobra.Command, _ []string) { runner.RunSink(backend.Sink()) },
		}
		runner.BindFlags(cmd.Flags())
		backend.BindFlags(cmd.Flags())
		if err := cmd.Execute(); err != nil {
			panic(err)
		}
	}
}
