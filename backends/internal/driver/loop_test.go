// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// kernel is a writer that refuses transactions with a service whose name says so, and may be broken altogether.
type kernel struct {
	mu       sync.Mutex
	services map[string]*dataplane.Service
	broken   bool
	altered  bool
	replaces int
	applied  int      // services in successful calls of Apply
	cleaned  []string // whose flows were looked at, by name
}

func (k *kernel) accepts(services ...*dataplane.Service) error {
	for _, s := range services {
		if s != nil && strings.Contains(s.Name, "bad") {
			return errors.New("refused")
		}
	}
	if k.broken {
		return errors.New("broken")
	}
	return nil
}

func (k *kernel) Replace(_ context.Context, services []*dataplane.Service) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.accepts(services...); err != nil {
		return err
	}
	k.replaces++
	k.altered = false
	k.services = map[string]*dataplane.Service{}
	for _, s := range services {
		k.services[s.Name] = s
	}
	return nil
}

func (k *kernel) Apply(_ context.Context, changes []dataplane.Change) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range changes {
		if !dataplane.Equal(k.services[c.Name()], c.Old) {
			panic("Old is not what was written")
		}
		if err := k.accepts(c.New); err != nil {
			return err
		}
	}
	k.applied += len(changes)
	for _, c := range changes {
		if delete(k.services, c.Name()); c.New != nil {
			k.services[c.Name()] = c.New
		}
	}
	return nil
}

func (k *kernel) Check(context.Context) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.altered, nil
}

func (k *kernel) Clean(_ context.Context, changes []dataplane.Change) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range changes {
		if !dataplane.Equal(k.services[c.Name()], c.New) {
			panic("flows are cleaned before the kernel has the change")
		}
		k.cleaned = append(k.cleaned, c.Name())
	}
	return len(changes), nil
}

func (k *kernel) CleanAll(_ context.Context, services []*dataplane.Service) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range services {
		k.cleaned = append(k.cleaned, s.Name)
	}
	return 0, errors.New("conntrack is not there") // which is logged, and nothing else
}

func (k *kernel) Cleanup(context.Context) error    { return nil }
func (k *kernel) Text([]*dataplane.Service) string { return "" }

// has tells which services the kernel has, by name.
func (k *kernel) has() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.services))
}

func (k *kernel) set(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func set(names ...string) (changes []dataplane.Change) {
	for _, name := range names {
		changes = append(changes, dataplane.Change{New: &dataplane.Service{Name: name, Frontends: []dataplane.Frontend{
			{Kind: dataplane.ExternalIP, IP: netip.MustParseAddr("192.0.2.1")},
		}}})
	}
	return changes
}

func gone(name string) []dataplane.Change {
	return []dataplane.Change{{Old: &dataplane.Service{Name: name}}}
}

func started(t *testing.T, k *kernel, prepare ...func(*Driver)) *Driver {
	d := newDriver()
	for _, p := range prepare {
		p(d)
	}
	d.start(k, k, nil)
	t.Cleanup(d.Stop)
	return d
}

func (k *kernel) requireHas(t *testing.T, names ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Equal(names, k.has()) }, patience, time.Millisecond, "%v", names)
}

func TestChangesFollowOneReplace(t *testing.T) {
	k := &kernel{}
	d := started(t, k)
	require.Error(t, d.Ready())
	d.Update(set("a", "b"))
	require.NoError(t, d.Settle(t.Context()))
	k.requireHas(t, "a", "b")
	d.Update(append(set("c"), gone("a")...))
	k.requireHas(t, "b", "c")
	require.NoError(t, d.Settle(t.Context()))
	require.NoError(t, d.Ready())
	require.Equal(t, 1, k.replaces)
	require.Equal(t, 2, k.applied, "only what changed")
	d.Stop()
	slices.Sort(k.cleaned)
	require.Equal(t, []string{"a", "a", "b", "c"}, k.cleaned, "all at the start, then those that changed")
}

// TestOneRefusedService keeps none of the others from being programmed, neither at the start nor later.
func TestOneRefusedService(t *testing.T) {
	k := &kernel{}
	d := started(t, k)
	d.Update(set("a", "bad-1", "c", "d"))
	k.requireHas(t, "a", "c", "d")
	require.Eventually(t, func() bool { err := d.Ready(); return err != nil && strings.Contains(err.Error(), "bad-1") }, patience, time.Millisecond)
	require.ErrorContains(t, d.Settle(t.Context()), "service bad-1: refused")
	d.Update(set("bad-2", "e", "f"))
	k.requireHas(t, "a", "c", "d", "e", "f")
	d.Update(append(gone("bad-1"), gone("bad-2")...))
	require.Eventually(t, func() bool { return d.Ready() == nil }, patience, time.Millisecond, "well without them")
}

// TestRetry: what failed is kept, and written when the kernel takes it.
func TestRetry(t *testing.T) {
	k := &kernel{broken: true}
	d := started(t, k)
	d.Update(set("a"))
	require.Eventually(t, func() bool { err := d.Ready(); return err != nil && strings.Contains(err.Error(), "broken") }, patience, time.Millisecond)
	k.set(func() { k.broken = false })
	k.requireHas(t, "a")
	require.NoError(t, d.Settle(t.Context()))
}

// TestRepair: what someone else did to the rules is undone.
func TestRepair(t *testing.T) {
	k := &kernel{}
	d := started(t, k, func(d *Driver) { d.check = time.Millisecond })
	d.Update(set("a"))
	k.requireHas(t, "a")
	k.set(func() { k.altered, k.services = true, nil })
	k.requireHas(t, "a")
}

func TestStopBeforeStart(t *testing.T) { newDriver().Stop() }
