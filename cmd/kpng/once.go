// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/server/store"
)

// once is what the sinks have in common that can end after the first whole state: for scripts, which must not hang
// when there never is one.
type once struct {
	set     bool
	timeout func() time.Duration
}

// bindFlags binds --once and --timeout. A backend may have a --timeout of its own, which then means both.
func (o *once) bindFlags(flags *pflag.FlagSet, usage string) {
	flags.BoolVar(&o.set, "once", false, usage)
	if flags.Lookup("timeout") == nil {
		flags.Duration("timeout", client.DefaultTimeout, "with --once: how long to wait for the first whole state")
	}
	o.timeout = func() time.Duration {
		if timeout, err := flags.GetDuration("timeout"); err == nil && timeout > 0 {
			return timeout
		}
		return client.DefaultTimeout
	}
}

// then is a sink that, with --once, fails when the state is not whole in time, and else does what to does.
func (o *once) then(to func(ctx context.Context, st *store.Store) error) sink {
	return func(ctx context.Context, st *store.Store, ready func() error) error {
		if o.set {
			if err := o.wait(ctx, st, ready); err != nil {
				return err
			}
		}
		return to(ctx, st)
	}
}

func (o *once) wait(ctx context.Context, st *store.Store, ready func() error) error {
	inTime, cancel := context.WithTimeout(ctx, o.timeout())
	defer cancel()
	_, err := st.WaitSynced(inTime)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.New("stopped before the first whole state came")
	}
	if reason := ready(); reason != nil {
		return fmt.Errorf("no whole state within %v (--timeout): %w", o.timeout(), reason)
	}
	return fmt.Errorf("no whole state within %v (--timeout)", o.timeout())
}
