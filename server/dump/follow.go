// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/server/store"
)

// The delay before the next attempt after a failed one doubles from the first to the last.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 15 * time.Second
)

// Follow keeps a file equal to the state, from when it is whole, until ctx ends; then it returns nil. With once it
// returns when the first state is written. Changes that come while it writes are written together. When the very first
// attempt fails, Follow returns the error; a later failure is logged and retried, and the file stays as it was.
func Follow(ctx context.Context, st *store.Store, path string, once bool) error {
	if _, err := st.WaitSynced(ctx); err != nil {
		return nil //nolint:nilerr // only ctx ends the wait
	}
	removeTemporary(path)
	text := &writer{}
	snapshot, outdated := st.Watch()
	if err := text.replace(path, snapshot); err != nil {
		return err
	}
	if once {
		return nil
	}
	klog.InfoS("Writing the state", "file", path)
	failures := 0
	for {
		changed, retry := outdated, (<-chan time.Time)(nil)
		if failures > 0 { // a change does not empty a full disk
			changed, retry = nil, time.After(retryDelay(failures))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry:
		}
		snapshot, outdated = st.Watch()
		err := text.replace(path, snapshot)
		switch {
		case err == nil && failures > 0:
			klog.InfoS("Writing the state again", "file", path)
		case err != nil && failures == 0:
			klog.ErrorS(err, "The file stays as it was, until writing succeeds", "file", path)
		}
		if failures++; err == nil {
			failures = 0
		}
	}
}

// retryDelay has jitter of up to a half.
func retryDelay(failures int) time.Duration {
	delay := min(firstRetry<<min(failures-1, 16), lastRetry)
	return delay + rand.N(delay/2)
}

func (d *writer) replace(path string, snapshot *store.Snapshot) error {
	err := WriteFile(path, func(w io.Writer) error { return d.write(w, snapshot) })
	if err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}
