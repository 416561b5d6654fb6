// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

func TestMain(m *testing.M) {
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err) // and the tests of a real kernel are skipped
	}
	goleak.VerifyTestMain(m)
}

const patience = time.Minute

// kernel is a writer that refuses transactions with a service whose name says so, and may be broken altogether.
type kernel struct {
	mu       sync.Mutex
	services map[string]*dataplane.Service
	broken   bool
	forgives bool // nothing is refused any more
	altered  bool
	attempts int // transactions, also refused ones
	replaces int
	missing  int      // the most services that one Replace took away
	applied  int      // services in successful calls of Apply
	cleaned  []string // whose flows were looked at, by name
	swept    int      // calls of CleanAll that said the services are all
}

func (k *kernel) accepts(services ...*dataplane.Service) error {
	k.attempts++
	if k.broken {
		return fmt.Errorf("broken: %w", unix.EPERM)
	}
	refused := false
	taken := map[dataplane.Key]string{}
	for _, s := range services {
		refused = refused || k.refuses(s)
		for i := range s.Frontends {
			if by, twice := taken[s.Frontends[i].Key()]; twice {
				panic(by + " and " + s.Name + " have the same frontend")
			}
			taken[s.Frontends[i].Key()] = s.Name
		}
	}
	if refused {
		return fmt.Errorf("refused: %w", unix.EINVAL)
	}
	return nil
}

func (k *kernel) refuses(s *dataplane.Service) bool {
	return strings.Contains(s.Name, "bad") && !k.forgives
}

// knowing is a kernel that can be asked.
type knowing struct{ *kernel }

func (k knowing) Refused(_ context.Context, services []*dataplane.Service) (names []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range services {
		if k.refuses(s) {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

func (k *kernel) Replace(_ context.Context, services []*dataplane.Service) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.accepts(services...); err != nil {
		return err
	}
	k.replaces++
	k.altered = false
	before := len(k.services)
	k.services = map[string]*dataplane.Service{}
	for _, s := range services {
		k.services[s.Name] = s
	}
	k.missing = max(k.missing, before-len(k.services))
	return nil
}

func (k *kernel) Apply(_ context.Context, changes []dataplane.Change) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.altered {
		k.attempts++
		return unix.ENOENT
	}
	after := maps.Clone(k.services)
	var added []*dataplane.Service
	for _, c := range changes {
		if !dataplane.Equal(k.services[c.Name()], c.Old) {
			panic("Old is not what was written")
		}
		if delete(after, c.Name()); c.New != nil {
			added = append(added, c.New)
			after[c.Name()] = c.New
		}
	}
	if err := k.accepts(added...); err != nil {
		return err
	}
	k.attempts--
	if err := k.accepts(slices.Collect(maps.Values(after))...); err != nil {
		return err
	}
	k.applied += len(changes)
	k.services = after
	return nil
}

// Written implements elementCounter: a service is an element.
func (k *kernel) Written() int { return len(k.services) }

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

func (k *kernel) CleanAll(_ context.Context, services []*dataplane.Service, complete bool) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if complete {
		k.swept++
	}
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

// set are changes to services of an address each, which follows from the name.
func set(names ...string) (changes []dataplane.Change) {
	for _, name := range names {
		sum := sha256.Sum256([]byte(name))
		changes = append(changes, holding(name, netip.AddrFrom4([4]byte(sum[:4])).String())...)
	}
	return changes
}

// holding is a change to a service of these addresses.
func holding(name string, ips ...string) []dataplane.Change {
	s := &dataplane.Service{Name: name}
	for _, ip := range ips {
		s.Frontends = append(s.Frontends, dataplane.Frontend{Kind: dataplane.ExternalIP, IP: netip.MustParseAddr(ip)})
	}
	s.Normalize()
	return []dataplane.Change{{New: s}}
}

func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%04d", prefix, i))
	}
	return names
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
	require.NoError(t, d.Settle(t.Context()), "nothing was asked for")
	d.Update(set("a", "b"), nil)
	require.NoError(t, d.Settle(t.Context()))
	k.requireHas(t, "a", "b")
	d.Update(append(set("c"), gone("a")...), nil)
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
	d.Update(set("a", "bad-1", "c", "d"), nil)
	k.requireHas(t, "a", "c", "d")
	require.Eventually(t, func() bool { err := d.Ready(); return err != nil && strings.Contains(err.Error(), "bad-1") }, patience, time.Millisecond)
	require.True(t, d.ledger.alive(), "a node that serves all others is of use")
	require.ErrorContains(t, d.Settle(t.Context()), "service bad-1: refused")
	d.Update(set("bad-2", "e", "f"), nil)
	k.requireHas(t, "a", "c", "d", "e", "f")
	require.ErrorContains(t, d.Settle(t.Context()), "service bad-2: refused")
	d.Update(append(gone("bad-1"), gone("bad-2")...), nil)
	require.Eventually(t, func() bool { return d.Ready() == nil }, patience, time.Millisecond, "well without them")
}

// TestRetry: what failed is kept, and written when the kernel takes it.
func TestRetry(t *testing.T) {
	k := &kernel{broken: true}
	d := started(t, k)
	d.Update(set("a"), nil)
	require.Eventually(t, func() bool { err := d.Ready(); return err != nil && strings.Contains(err.Error(), "broken") }, patience, time.Millisecond)
	require.False(t, d.ledger.alive())
	k.set(func() { k.broken = false })
	k.requireHas(t, "a")
	require.NoError(t, d.Settle(t.Context()))
}

// TestRepair: what someone else did to the rules is undone.
func TestRepair(t *testing.T) {
	k := &kernel{}
	d := started(t, k, func(d *Driver) { d.check = time.Millisecond })
	d.Update(set("a"), nil)
	k.requireHas(t, "a")
	k.set(func() { k.altered, k.services = true, nil })
	k.requireHas(t, "a")
	require.Equal(t, 1., value(t, d.metrics.repairs))
}

func TestStopBeforeStart(t *testing.T) { newDriver().Stop() }
