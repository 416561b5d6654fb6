// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a driver tells of its work.
type metrics struct {
	duration     *prometheus.HistogramVec
	failures     *prometheus.CounterVec
	success      prometheus.Gauge
	repairs      prometheus.Counter
	flows        prometheus.Counter
	flowFailures prometheus.Counter
	failing      atomic.Bool
}

func newMetrics() *metrics {
	return &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kpng_dataplane_sync_duration_seconds", Help: "How long it took to write the kernel's rules, by kind: full or partial.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_dataplane_sync_failures_total", Help: "Syncs that did not program everything, by kind: full or partial.",
		}, []string{"kind"}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kpng_dataplane_last_success_timestamp_seconds", Help: "When the kernel was last made what is desired.",
		}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kpng_dataplane_repairs_total", Help: "How often someone else had removed or altered our rules.",
		}),
		flows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kpng_dataplane_conntrack_deletions_total", Help: "Flows that were removed because they went where they should not any more.",
		}),
		flowFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kpng_dataplane_conntrack_failures_total", Help: "How often flows could not be removed.",
		}),
	}
}

func (m *metrics) observe(kind string, took time.Duration, err error) {
	m.duration.WithLabelValues(kind).Observe(took.Seconds())
	m.failing.Store(err != nil)
	if err != nil {
		m.failures.WithLabelValues(kind).Inc()
		return
	}
	m.success.SetToCurrentTime()
}

// failed tells whether the last sync failed.
func (m *metrics) failed() bool { return m.failing.Load() }

// Collectors are the metrics.
func (d *Driver) Collectors() []prometheus.Collector {
	m := d.metrics
	return []prometheus.Collector{m.duration, m.failures, m.success, m.repairs, m.flows, m.flowFailures}
}
