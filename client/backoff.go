// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// maxErrorDelay bounds the wait between two attempts, so that a backend is in sync soon after kpng is back. A longer
// --error-delay is its own bound.
const maxErrorDelay = 10 * time.Second

// backoff is how long to wait after a failure: twice as long each time, up to a bound. The zero value is ready.
type backoff struct{ last time.Duration }

// next returns the wait after one more failure: at random between half of what is due and all of it, so that clients
// that lost their server together do not come back together.
func (b *backoff) next(first time.Duration) time.Duration {
	switch {
	case b.last == 0:
		b.last = first
	default:
		b.last = min(2*b.last, max(first, maxErrorDelay))
	}
	return b.last/2 + rand.N(b.last/2+1)
}

func (b *backoff) reset() { b.last = 0 }

// sleep waits, no longer than ctx lasts.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
