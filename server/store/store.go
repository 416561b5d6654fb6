// SPDX-License-Identifier: Apache-2.0

// Package store holds the state that a source has found: services, their endpoints by EndpointSlice, and nodes.
//
// Its life, in steps:
//
//  1. A source calls [Store.Update] with what it learned. The transaction compares with what is held, so setting
//     an equal value costs a comparison and changes nothing.
//  2. A commit that changed something publishes a new [Snapshot]: persistent trees that share all that did not
//     change with the snapshot before, and the keys that did change. It wakes everybody who waits.
//  3. A reader remembers the snapshot it last worked from, and nothing else. [Snapshot.Since] gives it the services
//     and nodes that differ, at a cost that follows the number of changes and not the size of the state.
//
// Readers never lock. A value in a snapshot never changes; what goes over the wire is encoded once, when it is set.
package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Store holds the newest [Snapshot]. Make one with [New].
type Store struct {
	// writing serialises Update: there is one writer at a time.
	writing sync.Mutex
	// owners tells the service (by name) of each slice (by namespace/name). Only the writer uses it.
	owners map[string]string

	current atomic.Pointer[published]
}

// published is a snapshot, and a channel that is closed when there is a newer one.
type published struct {
	snapshot *Snapshot
	outdated chan struct{}
}

// New returns an empty store, not synced.
func New() *Store {
	s := &Store{owners: map[string]string{}}
	s.publish(emptySnapshot())
	return s
}

func (s *Store) publish(snapshot *Snapshot) {
	old := s.current.Swap(&published{snapshot: snapshot, outdated: make(chan struct{})})
	if old != nil {
		close(old.outdated)
	}
}

// Snapshot returns the newest state. It is never nil.
func (s *Store) Snapshot() *Snapshot {
	return s.current.Load().snapshot
}

// Watch returns the newest state, and a channel that is closed as soon as there is a newer one.
func (s *Store) Watch() (*Snapshot, <-chan struct{}) {
	p := s.current.Load()
	return p.snapshot, p.outdated
}

// WaitSynced returns the newest state once it is whole, or the error of ctx.
func (s *Store) WaitSynced(ctx context.Context) (*Snapshot, error) {
	for {
		snapshot, outdated := s.Watch()
		if snapshot.Synced() {
			return snapshot, nil
		}
		select {
		case <-outdated:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Update runs fn on a transaction and commits it: all that fn did becomes visible at once, in one new snapshot.
// When nothing differs from what is held, there is no commit and nobody is woken. Updates run one after the other.
func (s *Store) Update(fn func(tx *Tx)) {
	s.writing.Lock()
	defer s.writing.Unlock()

	tx := newTx(s.Snapshot(), s.owners)
	fn(tx)
	if next := tx.commit(time.Now()); next != nil {
		s.publish(next)
	}
}
