// SPDX-License-Identifier: Apache-2.0

package json

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
)

func init() {
	backendcmd.Register("to-json", func() backendcmd.Cmd { return &Cmd{} })
}

// Cmd is the backend as a command. The zero value, with its flags bound, prints JSON on standard output.
type Cmd struct {
	// Out is where to print, standard output when nil.
	Out io.Writer

	config  localsink.Config
	output  string
	service string

	printer *printer
}

// Describe completes the command that runs the backend.
func (c *Cmd) Describe(cmd *cobra.Command) {
	cmd.Short = "Print the state as JSON at every change"
	cmd.Long = `Print the services that this node has to serve, and the endpoints that it may use for them, as JSON: one line an
item, everything again at every change. With --output=changes, one line for each service that changed.`
	cmd.Example = fmt.Sprintf(`  %[1]s | jq
  %[1]s --output=changes
  %[1]s --once --output=yaml --service=default/kpng-example`, cmd.CommandPath())
}

// BindFlags implements backendcmd.Cmd.
func (c *Cmd) BindFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&c.output, "output", "o", string(JSON), "what to print at a change: json or yaml (everything), or changes")
	flags.StringVar(&c.service, "service", "", "print this service only, given as `NAMESPACE/NAME`")
	c.config.BindFlags(flags)
}

// Validate reports every fault of the flags at once.
func (c *Cmd) Validate() error {
	var faults []error
	if !slices.Contains([]Output{JSON, YAML, Changes}, Output(c.output)) {
		faults = append(faults, fmt.Errorf("--output=%s: want json, yaml or changes", c.output))
	}
	if parts := strings.Split(c.service, "/"); c.service != "" && (len(parts) != 2 || slices.Contains(parts, "")) {
		faults = append(faults, fmt.Errorf("--service=%s: want NAMESPACE/NAME", c.service))
	}
	return errors.Join(faults...)
}

// Sink implements backendcmd.Cmd.
func (c *Cmd) Sink() localsink.Sink {
	out := c.Out
	if out == nil {
		out = os.Stdout
	}
	c.printer = &printer{out: out, output: Output(c.output), service: c.service}
	return &sink{changes.New(&c.config, c.printer.print), c}
}

// Finish implements backendcmd.Finisher: it returns what kept a state from being printed.
func (c *Cmd) Finish(context.Context) error {
	if c.printer == nil {
		return nil
	}
	return c.printer.failure()
}

// sink ends the client when its printer has ended.
type sink struct {
	*changes.Sink
	cmd *Cmd
}

// Setup makes a closed standard output an error of the next write; the Go runtime would end the process with SIGPIPE.
func (s *sink) Setup() {
	if s.cmd.Out == nil {
		signal.Ignore(syscall.SIGPIPE)
	}
}

func (s *sink) WaitRequest() (string, error) {
	if s.cmd.printer.ended != nil {
		return "", localsink.ErrStop
	}
	if err := s.cmd.Validate(); err != nil {
		return "", err // for callers that did not ask
	}
	return s.Sink.WaitRequest()
}
