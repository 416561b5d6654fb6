// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// metrics are what a driver tells of its work.
type metrics struct {
	duration     *prometheus.HistogramVec
	failures     *prometheus.CounterVec
	success      prometheus.Gauge
	elements     prometheus.Counter
	latency      prometheus.Histogram
	pending      prometheus.Gauge
	refused      prometheus.Gauge
	repairs      prometheus.Counter
	flows        prometheus.Counter
	flowFailures prometheus.Counter
}

const prefix = "kpng_dataplane_"

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
}

func newMetrics() *metrics {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "sync_duration_seconds", Help: "How long it took to write the kernel's rules, by kind: full or partial.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "sync_failures_total",
			Help: "Syncs that did not program everything, by kind (full or partial) and cause: refused, unsupported, timeout, tool or other.",
		}, []string{"kind", "cause"}),
		success:  gauge("last_success_timestamp_seconds", "When a sync last left the kernel as desired."),
		elements: counter("elements_written_total", "Rules and elements written to the kernel, or removed."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    prefix + "network_programming_duration_seconds",
			Help:    "Time from a change of a service's endpoints in the cluster until the kernel had it; what was there at the start is not counted.",
			Buckets: latencyBuckets,
		}),
		pending:      gauge("pending_services", "Services whose change is not written yet, without those refused."),
		refused:      gauge("refused_services", "Services whose last change could not be written."),
		repairs:      counter("repairs_total", "How often someone else had removed or altered our rules."),
		flows:        counter("conntrack_deletions_total", "Flows that were removed because they went where they should not any more."),
		flowFailures: counter("conntrack_failures_total", "How often flows could not be removed."),
	}
	for _, kind := range []string{kindFull, kindPartial} {
		for _, c := range causes { // a rate needs a zero to begin with
			m.failures.WithLabelValues(kind, string(c))
		}
	}
	return m
}

const (
	kindFull    = "full"
	kindPartial = "partial"
)

// latencyBuckets contain those bounds of kube-proxy's histogram that objectives are made of, and finer ones below.
var latencyBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300}

// observe a round.
func (m *metrics) observe(r *round, took time.Duration) {
	kind := kindPartial
	if r.full {
		kind = kindFull
	}
	m.duration.WithLabelValues(kind).Observe(took.Seconds())
	for c := range r.causes {
		m.failures.WithLabelValues(kind, string(c)).Inc()
	}
}

// observeLatency takes when that happened which was programmed just now.
func (m *metrics) observeLatency(triggers []time.Time) {
	for _, at := range triggers {
		m.latency.Observe(max(time.Since(at).Seconds(), 0)) // another machine's clock
	}
}

// elementCounter is a writer that knows how many rules and elements its last transaction wrote or removed.
type elementCounter interface{ Written() int }

func (m *metrics) wrote(w dataplane.Writer) {
	if c, ok := w.(elementCounter); ok {
		m.elements.Add(float64(c.Written()))
	}
}

// Collectors are the metrics.
func (d *Driver) Collectors() []prometheus.Collector {
	m := d.metrics
	return []prometheus.Collector{
		m.duration, m.failures, m.success, m.elements, m.latency, m.pending, m.refused, m.repairs, m.flows, m.flowFailures,
	}
}
