// SPDX-License-Identifier: Apache-2.0

package client

import (
	"flag"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// HandleFunc is given all items of a state, ordered by namespace/name. The slice belongs to it; the messages must not
// be changed.
type HandleFunc func(items []*ServiceEndpoints)

// HandleChFunc is given all items of a state by a channel.
type HandleChFunc = fullstate.Callback

// Change is what happened to one service.
type Change = changes.Change

// ChangesFunc is given what changed since it was called before, ordered by namespace/name. It is called first with the
// first full state, whatever that is, later when something changed. The changes belong to it.
type ChangesFunc func(changes []Change)

// Run is a whole program: it parses the command line, connects to kpng and calls the handler with everything at every
// change, until SIGINT or SIGTERM. More flags can be bound by extraBindFlags.
//
// What it costs grows with the state, at each change; see RunChanges for backends that serve many services.
//
// It returns when the program was told to stop. It ends the process, with one line on standard error, when the command
// line is wrong or the backend cannot run.
func Run(handler HandleFunc, extraBindFlags ...func(*pflag.FlagSet)) {
	RunCh(ArrayBackend(handler), extraBindFlags...)
}

// RunCh is Run for a handler that reads the items from a channel.
func RunCh(backend fullstate.Callback, extraBindFlags ...func(*pflag.FlagSet)) {
	run(func(r *Runner) { r.RunBackend(backend) }, extraBindFlags)
}

// RunChanges is Run for a handler that is called with what changed, at a cost that follows from the change.
func RunChanges(handler ChangesFunc, extraBindFlags ...func(*pflag.FlagSet)) {
	run(func(r *Runner) { r.RunChanges(handler) }, extraBindFlags)
}

// ArrayBackend returns a callback that calls the handlers with all items, one after the other.
func ArrayBackend(handlers ...HandleFunc) fullstate.Callback {
	return fullstate.ArrayCallback(func(items []*ServiceEndpoints) {
		for _, handler := range handlers {
			handler(items)
		}
	})
}

func run(start func(*Runner), extraBindFlags []func(*pflag.FlagSet)) {
	r := &Runner{}
	cmd := &cobra.Command{
		Use:   programName(),
		Short: "A kpng backend",
		Long: "A kpng backend: it connects to kpng, is told which services its node has to serve and which endpoints it may use\n" +
			"for them, and follows every change until it is stopped.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		Run:           func(*cobra.Command, []string) { start(r) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	// A program may look at the client's flags when it binds its own, and may have flags that a Runner has too.
	r.bindClientFlags(flags)
	for _, bind := range extraBindFlags {
		bind(flags)
	}
	r.bindOwnFlags(flags)
	bindLogFlags(flags)
	if err := cmd.Execute(); err != nil {
		fail(err)
	}
}

// bindLogFlags binds klog's -v and --vmodule, unless the program has taken care of that.
func bindLogFlags(flags *pflag.FlagSet) {
	all := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(all)
	for _, name := range []string{"v", "vmodule"} {
		if flags.Lookup(name) == nil && (len(name) > 1 || flags.ShorthandLookup(name) == nil) {
			flags.AddGoFlag(all.Lookup(name))
		}
	}
}
