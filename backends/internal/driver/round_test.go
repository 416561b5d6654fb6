// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// manual is a driver whose rounds the test makes.
type manual struct {
	*Driver
	k *kernel
}

func byHand(k *kernel) manual {
	d := newDriver()
	d.replaceTime, d.searchTime = time.Hour, time.Hour // however slow the machine is
	d.start(k, k, nil)
	return manual{d, k}
}

// round enters changes and makes a round.
func (m manual) round(t *testing.T, due bool, changes ...dataplane.Change) {
	m.ledger.enter(changes, nil)
	m.sync(t.Context(), due)
}

// earlier is what an earlier run wrote.
func earlier(names ...string) map[string]*dataplane.Service {
	services := map[string]*dataplane.Service{}
	for _, c := range set(names...) {
		services[c.Name()] = c.New
	}
	return services
}

// value of a counter or gauge; how much a histogram has observed.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	require.NoError(t, m.Write(&out))
	return out.GetCounter().GetValue() + out.GetGauge().GetValue() + float64(out.GetHistogram().GetSampleCount())
}

// TestRestart: what an earlier run wrote is served until it is replaced by something as good.
func TestRestart(t *testing.T) {
	good, bad := numbered("good", mostExclusions-1), []string{"bad-a", "good-0100-bad", "very-bad"}
	tests := map[string]struct {
		knows    bool
		bad      []string
		attempts int
	}{
		"the writer knows":            {knows: true, bad: bad, attempts: 2},
		"it does not":                 {bad: bad[1:2], attempts: 102 + 2},
		"it does not, and it is last": {bad: bad[2:], attempts: 501 + 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			k := &kernel{services: earlier(good...)}
			m := byHand(k)
			if test.knows {
				m.writer = knowing{k}
			}
			m.round(t, false, set(slices.Concat(good, test.bad)...)...)
			k.requireHas(t, good...)
			require.Zero(t, k.missing, "interrupted")
			require.LessOrEqual(t, k.attempts, test.attempts)
			require.Equal(t, slices.Sorted(slices.Values(test.bad)), slices.Sorted(maps.Keys(m.refused)))
			for _, name := range test.bad {
				require.ErrorContains(t, m.Ready(), "service "+name+": refused")
			}
			require.NotContains(t, k.cleaned, test.bad[0], "flows of what is not written are left alone")
			require.Zero(t, k.swept, "not all is written")

			// Whoever writes everything again, knows.
			k.altered, k.services, k.attempts = true, nil, 0
			m.verify(t.Context())
			m.round(t, false)
			k.requireHas(t, good...)
			require.Equal(t, 1, k.attempts)
		})
	}
}

// TestRestartWithMany: where not each service can be left out alone, few are missing; where several are refused, all are
// written one way or the other.
func TestRestartWithMany(t *testing.T) {
	good := numbered("good", 10*mostExclusions)
	k := &kernel{services: earlier(good...)}
	m := byHand(k)
	m.round(t, false, set(append(good, "good-0100-bad")...)...)
	k.requireHas(t, good...)
	require.LessOrEqual(t, k.missing, 11)

	good = numbered("good", 20)
	k = &kernel{services: earlier(good...)}
	m = byHand(k)
	m.round(t, false, set(append(good, "good-0007-bad", "very-bad")...)...)
	k.requireHas(t, good...)
	require.Len(t, m.refused, 2)
}

// TestManyRefused: a search ends after some attempts, is taken up again where it was, and what is healthy does not
// wait for it.
func TestManyRefused(t *testing.T) {
	k := &kernel{}
	m := byHand(k)
	m.round(t, false)
	bad := numbered("bad", 1000)
	m.round(t, false, set(append(bad, "good-1")...)...)
	require.LessOrEqual(t, k.attempts, mostAttempts+1)
	require.NotEmpty(t, m.suspects)
	require.ErrorContains(t, m.Ready(), "services wait")
	require.Equal(t, 1001., value(t, m.metrics.pending)+value(t, m.metrics.refused))

	k.attempts = 0
	m.round(t, false, set("good-2")...)
	require.Contains(t, k.has(), "good-2")
	require.Equal(t, 1, k.attempts, "a change of another one waits for nothing")

	rounds := 0
	for ; len(m.suspects) > 0; rounds++ {
		k.attempts = 0
		m.round(t, true)
		require.LessOrEqual(t, k.attempts, mostAttempts+mostProbes)
		require.Less(t, rounds, 100, "the search does not get on")
	}
	require.Equal(t, bad, slices.Sorted(maps.Keys(m.refused)))
	k.requireHas(t, "good-1", "good-2")
	require.Contains(t, m.Ready().Error(), "and 990 more services")
	require.Less(t, len(m.Ready().Error()), 1000)

	k.attempts = 0
	m.round(t, true)
	require.Equal(t, mostProbes, k.attempts, "some of the refused are tried again, not all")
	k.forgives, k.attempts = true, 0
	m.round(t, true)
	m.round(t, true)
	require.NoError(t, m.Ready())
	require.Equal(t, mostProbes+1, k.attempts, "when some are taken, the others may be, too")
	require.Len(t, k.has(), 1002)
	require.Equal(t, 1, k.swept, "now that all are written")
}

// TestManyRefusedKnown: a writer that knows needs no search.
func TestManyRefusedKnown(t *testing.T) {
	k := &kernel{}
	m := byHand(k)
	m.writer = knowing{k}
	m.round(t, false)
	k.attempts = 0
	bad := numbered("bad", 1000)
	m.round(t, false, set(append(bad, "good")...)...)
	require.Equal(t, 2, k.attempts)
	require.Equal(t, bad, slices.Sorted(maps.Keys(m.refused)))
	k.requireHas(t, "good")
}

// TestLastGoodState: what the kernel has of a service stays when it refuses the service's change; but not where that
// would keep another one from its frontends.
func TestLastGoodState(t *testing.T) {
	k := &kernel{forgives: true}
	m := byHand(k)
	m.round(t, false, slices.Concat(holding("bad", "192.0.2.1", "192.0.2.2"), set("good"))...)
	before := k.services["bad"]
	k.forgives = false
	m.round(t, false, holding("bad", "192.0.2.3")...)
	require.Same(t, before, k.services["bad"])
	require.ErrorContains(t, m.Ready(), "service bad: refused")

	k.altered, k.services, k.forgives = true, nil, true // the kernel would take the old state again
	m.verify(t.Context())
	m.round(t, false)
	require.Same(t, before, k.services["bad"], "also after a repair")

	k.forgives = false
	m.round(t, false, holding("heir", "192.0.2.2")...)
	k.requireHas(t, "good", "heir")
	require.ErrorContains(t, m.Ready(), "service bad: refused")

	require.Equal(t, 1., value(t, m.metrics.refused))

	m.round(t, false, gone("bad")...)
	require.NoError(t, m.Ready())
	require.Zero(t, value(t, m.metrics.refused))
	k.requireHas(t, "good", "heir")
}

// TestAltered: a transaction that fails because someone removed the rules is not the services' fault.
func TestAltered(t *testing.T) {
	k := &kernel{}
	m := byHand(k)
	m.round(t, false, set("a")...)
	k.altered, k.services = true, nil
	m.round(t, false, set("b", "c")...)
	k.requireHas(t, "a", "b", "c")
	require.NoError(t, m.Ready())
	require.Empty(t, m.refused)
	require.Equal(t, 1., value(t, m.metrics.repairs))
	require.Zero(t, value(t, m.metrics.pending))
}

// TestBroken: nobody searches for a refused service when the error is about all.
func TestBroken(t *testing.T) {
	k := &kernel{broken: true, services: earlier("a", "b", "c")}
	m := byHand(k)
	m.round(t, false, set("a", "b", "c")...)
	require.Equal(t, 1, k.attempts)
	require.ErrorContains(t, m.Ready(), "broken")
	settled, _ := m.ledger.settled()
	require.True(t, settled, "nobody waits for a kernel that is broken")
	require.Equal(t, 3., value(t, m.metrics.pending))
	require.Equal(t, 1., value(t, m.metrics.failures.WithLabelValues(kindFull, string(causeOther))))
	k.broken = false
	m.round(t, true)
	k.requireHas(t, "a", "b", "c")
	k.broken, k.attempts = true, 0
	m.round(t, false, set("d", "e")...)
	require.Equal(t, 1, k.attempts)
	k.broken = false
	m.round(t, true)
	k.requireHas(t, "a", "b", "c", "d", "e")
	require.NoError(t, m.Ready())
	require.Zero(t, value(t, m.metrics.pending))
}

func TestLatency(t *testing.T) {
	k := &kernel{}
	m := byHand(k)
	enter := func(names []string, ago time.Duration) {
		at := map[string]time.Time{}
		for _, name := range names {
			at[name] = time.Now().Add(-ago)
		}
		m.ledger.enter(set(names...), at)
	}
	observed := func() int { return int(value(t, m.metrics.latency)) }
	enter(nil, 0)
	enter([]string{"a", "b", "bad-0"}, 0)
	m.sync(t.Context(), false)
	require.Zero(t, observed(), "what was there at the start did not wait for us")
	enter([]string{"bad-1", "c"}, 0)
	m.sync(t.Context(), false)
	require.Equal(t, 1, observed(), "only what was written")
	enter([]string{"bad-1", "c"}, 0)
	m.sync(t.Context(), false)
	require.Equal(t, 1, observed(), "c is as it was")
	enter([]string{"d"}, time.Hour)
	m.sync(t.Context(), false)
	require.Equal(t, 1, observed(), "it happened before the start")
	k.forgives = true
	m.sync(t.Context(), true)
	require.Equal(t, 3, observed(), "both changes of bad-1")
	k.altered, k.services = true, nil
	m.verify(t.Context())
	enter([]string{"e"}, 0)
	m.sync(t.Context(), false)
	require.Equal(t, 4, observed(), "also when it came with a repair")
	for range 2 * mostTriggers {
		enter([]string{"f"}, 0)
	}
	m.sync(t.Context(), false)
	require.Equal(t, 4+mostTriggers, observed())
	require.Positive(t, value(t, m.metrics.elements))
}

func TestCauses(t *testing.T) {
	exit := exec.CommandContext(t.Context(), "false").Run()
	_, missing := exec.LookPath("there-is-no-such-program")
	tests := []struct {
		err   error
		cause cause
		ofAll bool
	}{
		{unix.EINVAL, causeRefused, false},
		{unix.EEXIST, causeRefused, false},
		{unix.EOPNOTSUPP, causeUnsupported, false},
		{dataplane.ErrUnsupported, causeUnsupported, false},
		{context.DeadlineExceeded, causeTimeout, true},
		{exit, causeTool, false},
		{missing, causeTool, true},
		{unix.EPERM, causeOther, true},
		{errors.New("?"), causeOther, false},
	}
	for _, test := range tests {
		err := fmt.Errorf("writer: %w", test.err)
		require.Equal(t, test.cause, causeOf(err), "%v", test.err)
		require.Equal(t, test.ofAll, ofAll(err), "%v", test.err)
	}
}

// TestExclusions: how many services are left out at a time follows from what an attempt takes.
func TestExclusions(t *testing.T) {
	d := newDriver()
	require.Equal(t, replaceTime, d.replaceTime)
	require.Equal(t, mostExclusions, d.exclusions(time.Millisecond))
	require.Equal(t, 20, d.exclusions(time.Second))
	require.Equal(t, fewestExclusions, d.exclusions(time.Minute))
	require.Equal(t, mostExclusions, d.exclusions(0))
}

// TestBackOff grows, begins again with news, and is not put off by changes.
func TestBackOff(t *testing.T) {
	d := newDriver()
	require.Zero(t, d.nextRetry(false, false))
	d.refused["bad"] = &refusal{}
	require.Equal(t, firstRetry, d.nextRetry(false, true))
	require.Zero(t, d.nextRetry(false, true), "it is soon anyway")
	for range 10 {
		require.Greater(t, d.nextRetry(true, false), firstRetry)
	}
	require.Equal(t, mostRetry, d.nextRetry(true, false))
	require.Zero(t, d.nextRetry(false, false))
	require.Equal(t, firstRetry, d.nextRetry(false, true))
	clear(d.refused)
	require.Zero(t, d.nextRetry(true, true))
	require.Zero(t, d.backoff)
	for range 100 {
		after := jittered(time.Second)
		require.True(t, after >= time.Second/2 && after < time.Second, after)
	}
}

// TestLogs: a refusal is logged once, and its end.
func TestLogs(t *testing.T) {
	var log bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	klog.SetOutputBySeverity("INFO", &log) // which all others are written to, too
	t.Cleanup(func() { klog.LogToStderr(true) })
	k := &kernel{}
	m := byHand(k)
	m.round(t, false, set("a", "bad")...)
	for range 5 {
		m.round(t, true, set("a")...)
	}
	k.forgives = true
	m.round(t, true)
	klog.Flush()
	require.Equal(t, 1, strings.Count(log.String(), "The kernel refuses a service"), log.String())
	require.Equal(t, 1, strings.Count(log.String(), "A service is not refused any more"))
}

// TestCollectors: the metrics are in order, and the failures are there before the first one.
func TestCollectors(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, c := range newDriver().Collectors() {
		require.NoError(t, registry.Register(c))
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "kpng_dataplane_sync_failures_total" })
	require.Len(t, families[i].GetMetric(), 2*len(causes))
}
