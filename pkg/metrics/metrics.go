// SPDX-License-Identifier: Apache-2.0

// Package metrics gives Prometheus what the agent does and what is in the tables. Labels are bounded: no addresses, no names of
// pods, and names of Services and nodes up to limits.
package metrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nearlb/nearlb/pkg/maps"
)

// Metrics are the agent's own counts. Methods may be called from any goroutine.
type Metrics struct {
	registry     *prometheus.Registry
	programming  prometheus.Histogram
	publications prometheus.Histogram
	failures     *prometheus.CounterVec
	writes       *prometheus.CounterVec
	drift        *prometheus.CounterVec
	audits       prometheus.Counter
	answers      *prometheus.CounterVec
	ejections    prometheus.Counter
	ejected      prometheus.Gauge
	silentNodes  prometheus.Gauge
	lastAudit    prometheus.Gauge
	lastSync     prometheus.Gauge
	ledger       *ledger
}

// New makes a set of metrics of its own; nothing is registered globally.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		programming: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "nearlb_network_programming_duration_seconds",
			Help:    "From the change of an endpoint (annotation endpoints.kubernetes.io/last-change-trigger-time) to its publication on this node.",
			Buckets: ProgrammingBuckets(),
		}),
		publications: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "nearlb_publication_duration_seconds",
			Help:    "Deciding about one Service and writing it into the tables.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}),
		failures: counters("nearlb_publication_errors_total", "Publications of a Service that failed and are tried again, by cause.", "cause"),
		writes:   counters("nearlb_table_writes_total", "Entries written by the agent.", "table"),
		drift:    counters("nearlb_drift_total", "Differences between the live tables and what was published, found by audits.", "table"),
		audits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nearlb_audits_total", Help: "Comparisons of the live tables with what was published."}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nearlb_health_answers_total",
			Help: "Answers of /healthz, /livez, /readyz and health check node ports (service), by HTTP status."}, []string{"endpoint", "code"}),
		ejections: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nearlb_ejections_total", Help: "Times that new connections began to leave a backend out, as it did not answer."}),
		ejected:     gauge("nearlb_backends_ejected", "Backends that new connections leave out."),
		silentNodes: gauge("nearlb_nodes_silent", "Nodes that answer neither heartbeats nor connections to their backends (--node-heartbeats)."),
		lastAudit:   gauge("nearlb_last_audit_timestamp_seconds", "When the tables were last compared."),
		lastSync:    gauge("nearlb_last_sync_timestamp_seconds", "When everything that changed was last published."),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "nearlb_build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	m.registry.MustRegister(m.programming, m.publications, m.failures, m.writes, m.drift, m.audits, m.answers, m.ejections, m.ejected, m.silentNodes, m.lastAudit, m.lastSync, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func counters(name, help string, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// ProgrammingBuckets are those of the Kubernetes network programming SLI, in seconds, as kube-proxy has them, with finer ones
// below a quarter of a second.
func ProgrammingBuckets() []float64 {
	buckets := []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5}
	for _, run := range [][]float64{
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7),
	} {
		buckets = append(buckets, run...)
	}
	return buckets
}

// Programmed notes the time from an endpoint's change to its publication.
func (m *Metrics) Programmed(d time.Duration) { m.programming.Observe(d.Seconds()) }

// Published notes one publication: how long it took and what it wrote.
func (m *Metrics) Published(took time.Duration, s maps.Stats) {
	m.publications.Observe(took.Seconds())
	for table, n := range map[string]int{
		"frontends": s.Frontends, "records": s.Records, "slots": s.Slots, "backends": s.Backends,
		"source_ranges": s.SourceRanges, "names": s.Names, "known_addresses": s.AddressFilter,
	} {
		if n > 0 {
			m.writes.WithLabelValues(table).Add(float64(n))
		}
	}
}

// Failed notes a publication that failed; cause is one of a few words.
func (m *Metrics) Failed(cause string) { m.failures.WithLabelValues(cause).Inc() }

// Audited notes one audit and what it found.
func (m *Metrics) Audited(at time.Time, found []maps.Drift) {
	m.audits.Inc()
	m.lastAudit.Set(seconds(at))
	for _, d := range found {
		m.drift.WithLabelValues(d.Table).Inc()
	}
}

// Answered notes one answer of a health server: healthz, livez, readyz or service.
func (m *Metrics) Answered(endpoint string, code int) {
	m.answers.WithLabelValues(endpoint, strconv.Itoa(code)).Inc()
}

// Ejection notes that a backend is left out.
func (m *Metrics) Ejection() { m.ejections.Inc() }

// Ejected notes how many backends are left out now.
func (m *Metrics) Ejected(n int) { m.ejected.Set(float64(n)) }

// SilentNodes notes how many nodes do not answer.
func (m *Metrics) SilentNodes(n int) { m.silentNodes.Set(float64(n)) }

// Synced notes that nothing waits to be published.
func (m *Metrics) Synced(at time.Time) { m.lastSync.Set(seconds(at)) }

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
