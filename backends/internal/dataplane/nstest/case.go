// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

// Case is a row of the packet-truth table: with these services programmed on n1, these are the answers.
type Case struct {
	Name     string
	Services []*dataplane.Service
	Checks   []Check
}

// Check is one question and what must come of it.
type Check struct {
	From string // the host that asks
	netlab.Probe
	Want
}

// Want is what must come of a question: an answer by one of these pods, which saw this source address; or none.
type Want struct {
	By     []string // any of these hosts
	Source netip.Addr
	Fail   func(error) bool // Refused or Unanswered
}

func (c Check) String() string {
	return fmt.Sprintf("%s -> %s %s (%d bytes)", c.From, c.Network, c.To, c.Size)
}

// Try asks and tells what is wrong with what came of it.
func (l *Lab) Try(ctx context.Context, c Check) error {
	if c.Fail != nil {
		return l.tryFailure(ctx, c)
	}
	a, err := l.Ask(ctx, c.From, c.Probe)
	switch {
	case err != nil:
		return err
	case !slices.Contains(c.By, a.Host):
		return fmt.Errorf("%v: answered by %s, want %v", c, a.Host, c.By)
	case a.Client.Addr() != c.Source:
		return fmt.Errorf("%v: %s saw %s, want %s", c, a.Host, a.Client.Addr(), c.Source)
	}
	return nil
}

func (l *Lab) tryFailure(ctx context.Context, c Check) error {
	ctx, cancel := context.WithTimeout(ctx, Silence)
	defer cancel()
	a, err := l.Ask(ctx, c.From, c.Probe)
	switch {
	case err == nil:
		return fmt.Errorf("%v: answered by %v, want %s", c, a, c.failure())
	case !c.Fail(err):
		return fmt.Errorf("%v: want %s, got %w", c, c.failure(), err)
	}
	return nil
}

func (w Want) failure() string {
	if w.Fail(netlab.ErrNoAnswer) {
		return "silence"
	}
	return "refusal"
}

// Check tries all checks, several at a time, and reports every one that fails.
func (l *Lab) Check(t testing.TB, checks []Check) {
	t.Helper()
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i, c := range checks {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			errs[i] = l.Try(t.Context(), c)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%v", err)
	}
}

// Run programs the case's services on n1 and tries its checks.
func (c Case) Run(t *testing.T, l *Lab, w dataplane.Writer) {
	t.Helper()
	for _, s := range c.Services {
		if err := s.Validate(); err != nil {
			t.Fatalf("service %s: %v", s.Name, err)
		}
	}
	if err := w.Replace(t.Context(), c.Services); err != nil {
		t.Fatalf("replace: %v", err)
	}
	l.Check(t, c.Checks)
}
