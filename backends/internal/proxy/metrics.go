// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	refusals  *prometheus.CounterVec
	lost      prometheus.Counter
	conflicts prometheus.Gauge
}

// newMetrics are those of a backend, whose name is the prefix of theirs.
func newMetrics(backend string) *metrics {
	prefix := strings.ReplaceAll(backend, "-", "_")
	m := &metrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_refused_addresses_total", Help: "Addresses of services that were refused, by reason.",
		}, []string{"reason"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "_conflicts_total", Help: "Addresses that a service did not get because they were another one's.",
		}),
		conflicts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "_conflicts", Help: "Addresses that services want now and do not have because they are another one's.",
		}),
	}
	for _, reason := range reasons {
		m.refusals.WithLabelValues(string(reason)) // 0 is there from the start, so that an increase from it is seen
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.refusals, m.lost, m.conflicts}
}
