// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearlb/nearlb/pkg/maps"
)

// Tables is what is read from the tables at each scrape: maps.Reader.
type Tables interface {
	Verdicts() iter.Seq2[maps.VerdictRow, error]
	Fill() iter.Seq2[maps.FillRow, error]
}

// Read adds the packet counters and the fill of the tables. They are read from the kernel, so packets that earlier agents
// saw are counted too.
func (m *Metrics) Read(t Tables) { m.registry.MustRegister(tableCollector{t}) }

type tableCollector struct{ tables Tables }

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

func (c tableCollector) Collect(out chan<- prometheus.Metric) {
	for row, err := range c.tables.Verdicts() {
		if err != nil {
			out <- prometheus.NewInvalidMetric(packets(), err)
			continue
		}
		labels := []string{row.Hook, row.Verdict, row.Reason}
		out <- prometheus.MustNewConstMetric(packets(), prometheus.CounterValue, float64(row.Packets), labels...)
		out <- prometheus.MustNewConstMetric(bytes(), prometheus.CounterValue, float64(row.Bytes), labels...)
	}
	for row, err := range c.tables.Fill() {
		if err != nil {
			out <- prometheus.NewInvalidMetric(entries(), err)
			continue
		}
		out <- prometheus.MustNewConstMetric(entries(), prometheus.GaugeValue, float64(row.Used), row.Table)
		out <- prometheus.MustNewConstMetric(limit(), prometheus.GaugeValue, float64(row.Limit), row.Table)
	}
}
