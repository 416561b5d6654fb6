// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts the runs.
type metrics struct {
	runs        *prometheus.CounterVec
	duration    prometheus.Histogram
	running     prometheus.Gauge
	waiting     prometheus.Gauge
	coalesced   prometheus.Counter
	lastSuccess prometheus.Gauge
}

// The values of the label result.
const (
	resultSuccess    = "success"
	resultFailure    = "failure"     // it exited with another status than 0, or died of a signal
	resultTimeout    = "timeout"     // killed
	resultStopped    = "stopped"     // killed, because we are stopping
	resultNotStarted = "not_started" // not found, not executable, no memory
)

func newMetrics() *metrics {
	m := &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_callout_runs_total",
			Help: "Ended runs of the callout program.",
		}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kpng_callout_run_duration_seconds",
			Help:    "How long the runs of the callout program took, whatever their result.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2.5, 11), // 5 ms to 48 s; --timeout is 30 s unless given
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kpng_callout_running",
			Help: "1 while the callout program runs.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kpng_callout_waiting",
			Help: "Runs that wait for their turn or for a retry.",
		}),
		coalesced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kpng_callout_coalesced_total",
			Help: "Runs that were not made, because a newer state took their place.",
		}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kpng_callout_last_success_timestamp_seconds",
			Help: "When the last successful run ended; 0 before the first.",
		}),
	}
	for _, result := range []string{resultSuccess, resultFailure, resultTimeout, resultStopped, resultNotStarted} {
		m.runs.WithLabelValues(result)
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.runs, m.duration, m.running, m.waiting, m.coalesced, m.lastSuccess}
}

// observe counts a run that took d.
func (m *metrics) observe(d time.Duration, err error) {
	m.runs.WithLabelValues(result(err)).Inc()
	m.duration.Observe(d.Seconds())
	if err == nil {
		m.lastSuccess.SetToCurrentTime()
	}
}

func result(err error) string {
	switch {
	case err == nil:
		return resultSuccess
	case errors.Is(err, errTimeout):
		return resultTimeout
	case errors.Is(err, errStopped):
		return resultStopped
	case errors.Is(err, errNotStarted):
		return resultNotStarted
	}
	return resultFailure
}
