// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"math/rand/v2"
	"time"
)

// backoff says how long a failed task waits for its retry.
type backoff struct {
	first, most time.Duration
}

// after returns the wait after the given failed attempt, counted from 1: twice as long as the one before, up to
// most, and of that a random part between the half and the whole, so that the nodes of a cluster on which the same
// thing failed do not all try again at once.
func (b backoff) after(attempt int) time.Duration {
	d := b.first
	for ; attempt > 1 && d < b.most; attempt-- {
		d *= 2
	}
	d = min(d, b.most)
	return d/2 + rand.N(d/2+1)
}
