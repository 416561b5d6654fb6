// SPDX-License-Identifier: Apache-2.0

package kube

import "github.com/prometheus/client_golang/prometheus"

// metrics of the source.
type metrics struct {
	events *prometheus.CounterVec
	errors *prometheus.CounterVec
	stale  *prometheus.GaugeVec
	feeds  prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_kube_events_total",
			Help: "Events from the API server, by resource and event (add, update, delete; list: a whole list).",
		}, []string{"resource", "event"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_kube_errors_total",
			Help: "Failed requests to the API server, by resource and verb.",
		}, []string{"resource", "verb"}),
		stale: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kpng_kube_stale",
			Help: "1 while the API server cannot be followed and the last known state is served, by resource.",
		}, []string{"resource"}),
		feeds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kpng_kube_selectorless_services",
			Help: "Services without a selector whose EndpointSlices are watched one by one.",
		}),
	}
}

// fresh makes the resources known, so that kpng_kube_stale is there, and 0, before anything goes wrong.
func (m *metrics) fresh(all ...*resource) {
	for _, r := range all {
		m.stale.WithLabelValues(r.name).Set(0)
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.events, m.errors, m.stale, m.feeds}
}
