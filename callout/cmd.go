// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
)

func init() {
	backendcmd.Register("to-callout", func() backendcmd.Cmd { return New() })
}

// Cmd is the backend as a command. Its life:
//
//  1. New, BindFlags, and once the flags are parsed SetArgs, which finds the program.
//  2. Sink is fed by a client. Its Setup starts the worker (and finds the program, if SetArgs was not called).
//  3. Finish ends it.
type Cmd struct {
	// OutputClosed is called when a run failed and nobody reads our standard output any more, as in
	// `kpng-callout | head`: there is no use in going on. It may be nil.
	OutputClosed func()

	config     localsink.Config
	timeout    time.Duration
	resync     time.Duration
	perService bool

	args    []string
	program *program
	stdout  *os.File
	worker  *worker
	metrics *metrics
}

var _ interface {
	backendcmd.Cmd
	backendcmd.Finisher
} = &Cmd{}

const (
	defaultTimeout = 30 * time.Second

	// A run gets stopGrace to end by itself when we are told to stop, then killGrace to obey SIGTERM. Together they
	// are well below the 30 s that Kubernetes gives a pod.
	stopGrace = 3 * time.Second
	killGrace = 3 * time.Second
	waitDelay = time.Second

	firstRetry = 500 * time.Millisecond
	mostRetry  = time.Minute
)

// New returns the command with its defaults.
func New() *Cmd {
	return &Cmd{timeout: defaultTimeout, stdout: os.Stdout, metrics: newMetrics()}
}

// Describe sets what the help of a command with this backend says, and which arguments it takes.
func (c *Cmd) Describe(cmd *cobra.Command) {
	cmd.Use = cmd.Name() + " [flags] [-- PROGRAM [ARGUMENT...]]"
	cmd.Short = "Run a program with the state of this node as JSON, at every change"
	cmd.Long = `Run a program with the services that this node has to serve, and the endpoints it may use for them, on its standard
input: one JSON object a line for each service. The program is run at the start and at every change, one run at a time;
changes during a run are one further run. It is $CALLOUT (a name or a path, no shell; /bin/cat when not set) or what
follows --. A run that fails is repeated, with growing waits, until it succeeds or a newer state is there.

The program finds in its environment:
  KPNG_NODE_NAME  the node
  KPNG_REVISION   the number of the state, counted from 1 by this process
  KPNG_REASON     start, change, retry (the run before failed) or resync; with --per-service also delete
  KPNG_ATTEMPT    1, or more when runs with this state failed before
  KPNG_ITEMS      the number of lines on standard input: fewer have been cut short

What it prints is printed; what it says on standard error is logged.`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
			return fmt.Errorf("unexpected argument %q: the program and its arguments go after --", args[0])
		}
		return nil
	}
}

// BindFlags binds --node-name, --timeout, --resync and --per-service. A client.Runner that binds its flags afterwards
// shares --timeout with us.
func (c *Cmd) BindFlags(flags *pflag.FlagSet) {
	c.config.BindFlags(flags)
	flags.DurationVar(&c.timeout, "timeout", c.timeout,
		"how long a run of the program may take until it is killed with all that it started; 0: as long as it likes. "+
			"With --once also how long to wait for the first full state")
	flags.DurationVar(&c.resync, "resync", c.resync,
		"run the program again after this time, though nothing changed; 0: never")
	flags.BoolVar(&c.perService, "per-service", c.perService,
		"run the program for each service that changed, with that item alone; for a deleted one with an item without endpoints and KPNG_REASON=delete")
}

// SetArgs gives the program and its arguments, from after the -- of the command line. Without, it is $CALLOUT. The flags
// are parsed by then, so this is where every fault of the command line is reported.
func (c *Cmd) SetArgs(args []string) error {
	c.args = args
	return c.validate()
}

// validate finds the program, and reports every fault at once.
func (c *Cmd) validate() error {
	var errs []error
	if c.timeout < 0 {
		errs = append(errs, fmt.Errorf("--timeout %v: want 0 or more", c.timeout))
	}
	if c.resync < 0 {
		errs = append(errs, fmt.Errorf("--resync %v: want 0 or more", c.resync))
	}
	var err error
	c.program, err = findProgram(c.args, os.Getenv)
	return errors.Join(append(errs, err)...)
}

// Sink returns the sink that runs the program.
func (c *Cmd) Sink() localsink.Sink {
	if c.perService {
		return &sink{Sink: c.changesSink(), cmd: c}
	}
	return &sink{Sink: c.fullSink(), cmd: c}
}

// Finish waits for the work that is left and returns its error; when ctx ends, it stops it and returns nil.
func (c *Cmd) Finish(ctx context.Context) error {
	if c.worker == nil {
		return nil
	}
	return c.worker.finish(ctx)
}

// Ready tells why the last state was not handled, or nil.
func (c *Cmd) Ready() error {
	if c.worker == nil {
		return errors.New("callout: not started yet")
	}
	return c.worker.ready()
}

// Collectors are the metrics of the runs.
func (c *Cmd) Collectors() []prometheus.Collector { return c.metrics.collectors() }

// start starts the worker.
func (c *Cmd) start() error {
	if c.program == nil {
		if err := c.validate(); err != nil {
			return err
		}
	}
	r := &runner{
		program: c.program, stdout: c.stdout,
		say: func(line string) {
			klog.InfoS("callout says", "program", c.program.path, "stderr", line)
		},
		timeout: c.timeout, stopGrace: stopGrace, killGrace: killGrace, waitDelay: waitDelay,
	}
	c.worker = &worker{
		run: func(ctx context.Context, t *task) error {
			err := r.run(ctx, t.env(c.config.NodeName), t.write)
			if err == nil {
				return nil
			}
			if c.OutputClosed != nil && nobodyReads(c.stdout) {
				c.OutputClosed()
			}
			return t.named(r.program.path, err)
		},
		backoff: backoff{first: firstRetry, most: mostRetry},
		resync:  c.resync,
		metrics: c.metrics,
	}
	c.worker.start()
	return nil
}
