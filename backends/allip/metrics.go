// SPDX-License-Identifier: Apache-2.0

package allip

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	refusals  *prometheus.CounterVec
	lost      prometheus.Counter
	conflicts prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_allip_refused_addresses_total", Help: "Addresses of services that were refused, by reason.",
		}, []string{"reason"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kpng_allip_conflicts_total", Help: "Addresses that a service did not get because they were another one's.",
		}),
		conflicts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kpng_allip_conflicts", Help: "Addresses that services want now and do not have because they are another one's.",
		}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.refusals, m.lost, m.conflicts}
}
