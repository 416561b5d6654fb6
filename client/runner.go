// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/internal/flagset"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// DefaultTimeout is how long --once waits for a first full state.
const DefaultTimeout = 30 * time.Second

// Runner runs a backend with the standard options. The zero value, without flags, has their defaults, but names no
// node.
type Runner struct {
	// NodeName is the node whose view the backend is given. (A Sink of one's own has its own.)
	NodeName string

	// Once ends the run after the first full state.
	Once bool
	// Timeout is how long to wait for it with Once. It has no effect without.
	Timeout time.Duration
	// CPUProfile is a file to write a CPU profile of the run to.
	CPUProfile string

	client *LocalClient
	status status
}

// BindFlags binds the flags of a LocalClient (see LocalClient.DefaultFlags), --node-name, --once, --timeout and
// --cpuprofile. A flag that is there already, as a backend's own --timeout may be, is shared: both get its value.
func (r *Runner) BindFlags(flags FlagSet) {
	r.bindClientFlags(flags)
	r.bindOwnFlags(flags)
}

func (r *Runner) bindClientFlags(flags FlagSet) { r.client = New(flags) }

func (r *Runner) bindOwnFlags(flags FlagSet) {
	flagset.NodeName(flags, &r.NodeName)
	flagset.Bool(flags, &r.Once, "once", false, "end after the first full state")
	flagset.Duration(flags, &r.Timeout, "timeout", DefaultTimeout, "with --once: how long to wait for the first full state")
	flagset.String(flags, &r.CPUProfile, "cpuprofile", "", "`file` to write a CPU profile to")
}

// RunBackend runs a full-state backend until a signal ends it. It ends the process when the backend fails.
func (r *Runner) RunBackend(handler fullstate.Callback) {
	sink := fullstate.New(r.config())
	sink.Callback = handler
	r.RunSink(sink)
}

// RunChanges runs a backend that is called with what changed, until a signal ends it; see [RunChanges]. It ends the
// process when the backend fails.
func (r *Runner) RunChanges(handler ChangesFunc) {
	r.RunSink(changes.New(r.config(), func(changes []Change) error {
		handler(changes)
		return nil
	}))
}

// RunSink runs a sink until a signal ends it. It ends the process, with one line on standard error, when that fails.
func (r *Runner) RunSink(sink localsink.Sink) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends a program that does not end by itself
	if err := r.Run(ctx, sink); err != nil {
		fail(err)
	}
	stop()
}

// RunCmd runs a backend's command, the flags of which are parsed, as Run does, and lets it finish its work.
func (r *Runner) RunCmd(ctx context.Context, cmd backendcmd.Cmd) error {
	err := backendcmd.Prepare(ctx, cmd)
	if err == nil {
		err = r.Run(ctx, cmd.Sink())
	}
	if errors.Is(err, localsink.ErrStop) {
		err = nil
	}
	if finisher, ok := cmd.(backendcmd.Finisher); ok {
		err = errors.Join(err, finisher.Finish(ctx))
	}
	return err
}

// Run is the whole life of a backend: it feeds the sink until ctx ends, or, with Once, until the first full state is
// handled. It returns nil then, and when the sink ends with localsink.ErrStop. It returns an error when the options
// cannot be used, the sink ends with another error, or Once does not get its state.
func (r *Runner) Run(ctx context.Context, sink localsink.Sink) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := r.session(ctx, sink)
	if err := errors.Join(c.validate(), r.validate(), c.TLS.Validate()); err != nil {
		return err
	}
	stopProfile, err := StartCPUProfile(r.CPUProfile)
	if err != nil {
		return err
	}
	defer stopProfile()
	defer c.disconnect()

	if r.Once {
		defer time.AfterFunc(r.timeout(), func() { cancel(errNoState) }).Stop()
	}
	sink.Setup()
	for {
		err := c.next()
		switch {
		case err == nil && r.Once, errors.Is(err, localsink.ErrStop):
			return nil
		case err == nil:
		case errors.Is(err, errNoState):
			return r.noState(c)
		case ctx.Err() != nil && r.Once:
			return errors.New("stopped before the first full state came")
		case ctx.Err() != nil:
			return nil
		default:
			return err
		}
	}
}

func (r *Runner) validate() error {
	if r.Timeout < 0 {
		return fmt.Errorf("--timeout %v: want 0 (for the default, %v) or more", r.Timeout, DefaultTimeout)
	}
	return nil
}

// Ready tells why what the backend has been given may be out of date, or nil. It may be called from anywhere.
func (r *Runner) Ready() error { return r.status.get() }

// session returns a client for one run.
func (r *Runner) session(ctx context.Context, sink localsink.Sink) *LocalClient {
	c := &LocalClient{Sink: sink, status: &r.status}
	if r.client != nil {
		c.Target, c.TLS, c.ErrorDelay, c.MaxMsgSize = r.client.Target, r.client.TLS, r.client.ErrorDelay, r.client.MaxMsgSize
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

func (r *Runner) config() *localsink.Config { return &localsink.Config{NodeName: r.NodeName} }

func (r *Runner) timeout() time.Duration {
	if r.Timeout <= 0 {
		return DefaultTimeout
	}
	return r.Timeout
}

// errNoState is the cause of the end of a run that waited for too long.
var errNoState = errors.New("no full state in time")

func (r *Runner) noState(c *LocalClient) error {
	if c.lastErr != nil {
		return fmt.Errorf("no full state from %s within %v: %w", c.target(), r.timeout(), c.lastErr)
	}
	return fmt.Errorf("no full state from %s within %v: connected, but the server is not in sync itself", c.target(), r.timeout())
}

// StartCPUProfile starts to write a CPU profile to a file, if one is named. What it returns ends that.
func StartCPUProfile(file string) (stop func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("--cpuprofile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("--cpuprofile %s: %w", file, err)
	}
	return func() {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: --cpuprofile: %v\n", programName(), err)
		}
	}, nil
}

func programName() string { return filepath.Base(os.Args[0]) }

// fail ends the process with one line.
func fail(err error) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", programName(), strings.ReplaceAll(err.Error(), "\n", "; "))
	os.Exit(1)
}
