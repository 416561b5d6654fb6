// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// status is whether a backend is up to date, for those who ask from other goroutines.
type status struct {
	mu     sync.Mutex
	synced bool      // there was a whole state
	err    error     // what keeps the client from the next one
	since  time.Time // when err began
}

// set notes a whole change set, or what kept it from coming.
func (s *status) set(err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.synced = true
	} else if s.err == nil {
		s.since = time.Now()
	}
	s.err = err
}

func (s *status) get() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil && s.synced:
		return fmt.Errorf("stale since %s: %w", s.since.Format(time.RFC3339), s.err)
	case s.err != nil:
		return fmt.Errorf("no state yet: %w", s.err)
	case !s.synced:
		return errors.New("no state yet")
	default:
		return nil
	}
}
