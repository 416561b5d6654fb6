// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kpng/server/store"
)

// metrics of serving. What is counted while serving is kept here; what can be looked up is collected when asked for.
type metrics struct {
	ops     *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	latency prometheus.Histogram
}

func newMetrics() *metrics {
	return &metrics{
		ops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_ops_sent_total",
			Help: "Ops sent to watchers, Sync and Reset included.",
		}, []string{"api"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_bytes_sent_total",
			Help: "Bytes of messages sent to watchers, before TLS and HTTP/2.",
		}, []string{"api"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kpng_event_to_sent_seconds",
			Help:    "Time from when the source saw a change until it was written to a watcher, one value a watcher and change set.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16), // 0.5 ms to 16 s
		}),
	}
}

func (m *metrics) sent(api string, c counter) {
	m.ops.WithLabelValues(api).Add(float64(c.ops))
	m.bytes.WithLabelValues(api).Add(float64(c.bytes))
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.ops, m.bytes, m.latency}
}

// watcherCollector tells, for each watcher, by how many commits it is behind.
type watcherCollector struct {
	*watchers
	lag *prometheus.Desc
}

func newWatcherCollector(w *watchers) *watcherCollector {
	return &watcherCollector{watchers: w, lag: prometheus.NewDesc("kpng_watcher_lag_commits",
		"Commits that a watcher has not been told yet; 0 for one that waits for the next.",
		[]string{"api", "node", "peer", "id"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *watcherCollector) Describe(out chan<- *prometheus.Desc) { out <- c.lag }

// Collect implements prometheus.Collector.
func (c *watcherCollector) Collect(out chan<- prometheus.Metric) {
	newest := c.store.Snapshot().Revision()
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.all {
		out <- w.metric(c.lag, newest)
	}
}

func (w *watcher) metric(lag *prometheus.Desc, newest uint64) prometheus.Metric {
	w.mu.Lock()
	defer w.mu.Unlock()
	behind := newest - min(w.revision, newest)
	if w.waiting {
		behind = 0
	}
	return prometheus.MustNewConstMetric(lag, prometheus.GaugeValue, float64(behind),
		w.api, w.node, w.peer, strconv.FormatUint(w.id, 10))
}

// StoreCollector tells what a store holds.
func StoreCollector(st *store.Store) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return storeCollector{
		store:   st,
		objects: desc("kpng_store_objects", "What the store holds.", "kind"),
		commits: desc("kpng_store_commits_total", "Commits that changed the store."),
		synced:  desc("kpng_store_synced", "1 when the source has delivered a whole state."),
	}
}

type storeCollector struct {
	store                    *store.Store
	objects, commits, synced *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c storeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.objects
	out <- c.commits
	out <- c.synced
}

// Collect implements prometheus.Collector.
func (c storeCollector) Collect(out chan<- prometheus.Metric) {
	snapshot := c.store.Snapshot()
	size := snapshot.Size()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.objects, float64(size.Services), "service")
	gauge(c.objects, float64(size.Slices), "slice")
	gauge(c.objects, float64(size.Endpoints), "endpoint")
	gauge(c.objects, float64(size.Nodes), "node")
	synced := 0.0
	if snapshot.Synced() {
		synced = 1
	}
	gauge(c.synced, synced)
	out <- prometheus.MustNewConstMetric(c.commits, prometheus.CounterValue, float64(snapshot.Revision()))
}
