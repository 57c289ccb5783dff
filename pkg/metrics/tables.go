// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"iter"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Tables is what is read from the tables: maps.Reader.
type Tables interface {
	Verdicts() iter.Seq2[maps.VerdictRow, error]
	Traffic() iter.Seq2[maps.TrafficRow, error]
	ServiceTraffic() iter.Seq2[maps.ServiceTrafficRow, error]
	Failed(*maps.FailedOnce) iter.Seq[maps.FailedRow]
}

// Reading says what Read reads.
type Reading struct {
	Tables Tables
	Fill   func() []maps.FillRow
	Zone   func() string // of this node, "" unknown
	Limits Limits
	Looked func(error) // told of each look that a scrape makes; may be nil
}

// Read adds the packet counters and the fill of the tables. They are read from the kernel, so packets that earlier agents
// saw are counted too. It also adds, since the first look, the traffic of services, of backends and between zones. All of them
// are read when somebody scrapes, and at no other time.
func (m *Metrics) Read(r Reading) {
	m.ledger = newLedger(r.Tables, r.Zone, r.Limits)
	m.registry.MustRegister(tableCollector{r.Tables, r.Fill}, trafficCollector{m.ledger, r.Looked})
}

// Look adds up what services and backends were sent since the last look, and which connections failed. The first look says what
// was before: call it once after Read. Scrapes look by themselves, at most once in lookEvery.
func (m *Metrics) Look() error { return m.ledger.look() }

// BackendEnded adds the last counts of a backend id of the service port, before the id may be another backend's. It never waits
// for a look. Call it after Read.
func (m *Metrics) BackendEnded(port lb.PortName, row maps.TrafficRow) {
	m.ledger.end(func() { m.ledger.endBackend(port, row) })
}

// PortEnded adds the last counts of a service port, as BackendEnded does.
func (m *Metrics) PortEnded(row maps.ServiceTrafficRow) {
	m.ledger.end(func() { m.ledger.endPort(row) })
}

// lookEvery keeps several who scrape from reading all counters as often.
const lookEvery = time.Second

func lastLook() *prometheus.Desc {
	return describe("nearlb_last_look_timestamp_seconds", "When the counters of services, of backends and between zones were last added up: at a scrape.")
}

// trafficCollector shows the sums of the ledger.
type trafficCollector struct {
	ledger *ledger
	looked func(error)
}

func (c trafficCollector) Describe(out chan<- *prometheus.Desc) {
	out <- lastLook()
	out <- zoneBytes()
	out <- zoneConnections()
	for _, f := range []family{serviceFamily(), backendFamily()} {
		for _, d := range []*prometheus.Desc{f.connections, f.failed, f.packets, f.bytes, f.omitted} {
			out <- d
		}
	}
	out <- serviceFamily().refused
}

func (c trafficCollector) Collect(out chan<- prometheus.Metric) {
	if looked, err := c.ledger.lookAgain(); looked && c.looked != nil {
		c.looked(err)
	}
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	if c.ledger.begun {
		out <- prometheus.MustNewConstMetric(lastLook(), prometheus.GaugeValue, seconds(c.ledger.last))
	}
	collectZones(&c.ledger.zones, out)
	collectServices(c.ledger, out)
	collectBackends(c.ledger, out)
}

type tableCollector struct {
	tables Tables
	fill   func() []maps.FillRow
}

func (c tableCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{packets(), bytes(), entries(), limit()} {
		out <- d
	}
}

func packets() *prometheus.Desc {
	return describe("nearlb_packets_total", "Packets that the programs decided about.", "hook", "verdict", "reason")
}

func bytes() *prometheus.Desc {
	return describe("nearlb_bytes_total", "Bytes of those packets, with the Ethernet header.", "hook", "verdict", "reason")
}

func entries() *prometheus.Desc {
	return describe("nearlb_table_entries", "Entries of a table in use.", "table")
}

func limit() *prometheus.Desc {
	return describe("nearlb_table_limit", "Entries that a table can hold.", "table")
}

// Collect also shows drops that never happened: an alert on the first ones wants to see them rise from zero.
func (c tableCollector) Collect(out chan<- prometheus.Metric) {
	seen := map[[3]string]bool{}
	for row, err := range c.tables.Verdicts() {
		if err != nil {
			out <- prometheus.NewInvalidMetric(packets(), err)
			continue
		}
		labels := []string{row.Hook, row.Verdict, reasonLabel(row.Reason)}
		seen[[3]string(labels)] = true
		out <- prometheus.MustNewConstMetric(packets(), prometheus.CounterValue, float64(row.Packets), labels...)
		out <- prometheus.MustNewConstMetric(bytes(), prometheus.CounterValue, float64(row.Bytes), labels...)
	}
	for _, hook := range bpf.Hooks() {
		for _, v := range bpf.Verdicts() {
			labels := []string{hook, string(v.Class), reasonLabel(v.Reason)}
			if v.Class == bpf.Drop && !seen[[3]string(labels)] {
				out <- prometheus.MustNewConstMetric(packets(), prometheus.CounterValue, 0, labels...)
			}
		}
	}
	for _, row := range c.fill() {
		out <- prometheus.MustNewConstMetric(entries(), prometheus.GaugeValue, float64(row.Used), row.Table)
		out <- prometheus.MustNewConstMetric(limit(), prometheus.GaugeValue, float64(row.Limit), row.Table)
	}
}

// reasonLabel spells a verdict's reason as the label always has: dashboards and alerts of users name it.
func reasonLabel(reason string) string { return strings.ReplaceAll(reason, "-", "_") }
