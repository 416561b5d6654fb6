// SPDX-License-Identifier: Apache-2.0

// Package backendcmd is how a backend becomes a command: its package registers a constructor when it is imported, and
// a program that imports it (kpng with its to-local commands, or a program of its own) offers it under that name.
package backendcmd

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/client/localsink"
)

// Cmd is a backend as a command. BindFlags is called first, then, with the flags parsed, Sink, once.
//
// A Cmd may also be a Preparer and a Finisher.
type Cmd interface {
	BindFlags(*pflag.FlagSet)
	Sink() localsink.Sink
}

// Preparer is a Cmd that has work to do, or faults to find, before it is fed.
type Preparer interface {
	// Prepare is called once, before anything is connected to. After an error the Cmd is not fed; localsink.ErrStop
	// says that all is done already.
	Prepare(ctx context.Context) error
}

// Prepare prepares a Cmd that is a Preparer.
func Prepare(ctx context.Context, cmd Cmd) error {
	if p, ok := cmd.(Preparer); ok {
		return p.Prepare(ctx)
	}
	return nil
}

// Finisher is a Cmd that works on when the last op is handled.
type Finisher interface {
	// Finish is called once, when no more ops will come. It returns when the work is done, with its error; when ctx
	// ends, or has ended already, it breaks the work off.
	Finish(ctx context.Context) error
}

// UseCmd is a registered backend.
type UseCmd struct {
	// Use is the name of the command, such as to-json.
	Use string
	New func() Cmd
}

// registry is the one registry of the program; packages fill it when they are initialized.
var registry struct {
	sync.Mutex
	cmds []UseCmd
}

// Register offers a backend under a name. Two backends of one name are a mistake in the program, and panic.
func Register(use string, newCmd func() Cmd) {
	registry.Lock()
	defer registry.Unlock()
	if slices.ContainsFunc(registry.cmds, func(c UseCmd) bool { return c.Use == use }) {
		panic(fmt.Sprintf("backendcmd: %q is registered twice", use))
	}
	registry.cmds = append(registry.cmds, UseCmd{Use: use, New: newCmd})
}

// Registered returns the backends, in the order in which they registered.
func Registered() []UseCmd {
	registry.Lock()
	defer registry.Unlock()
	return slices.Clone(registry.cmds)
}
