// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// churn makes changes at a rate, from several workers, until stop is called. That lets changes under way be finished,
// and returns how many were made.
func churn(ctx context.Context, rate, workers int, change func(ctx context.Context, worker int) error) (stop func() (int, error)) {
	pace, done := context.WithCancel(ctx)
	var made atomic.Int64
	var group errgroup.Group
	start := time.Now()
	for worker := range workers {
		group.Go(func() error {
			for n := worker; ; n += workers {
				sleep(pace, time.Until(start.Add(time.Duration(n)*time.Second/time.Duration(rate))))
				if pace.Err() != nil {
					return nil
				}
				if err := change(ctx, worker); err != nil {
					return err
				}
				made.Add(1)
			}
		})
	}
	return func() (int, error) {
		done()
		err := group.Wait()
		return int(made.Load()), err
	}
}
