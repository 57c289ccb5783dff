// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// topDocument is nearlb top -o json.
type topDocument struct {
	Node     string    `json:"node"` // "" no agent says
	Time     time.Time `json:"time"`
	View     string    `json:"view"`
	Interval float64   `json:"interval_seconds"`
	Rows     []topRow  `json:"rows"`
}

// topRow is one line of a view: which of the first fields it has depends on the view.
type topRow struct {
	Node        string    `json:"node"` // where it was measured
	Time        time.Time `json:"time"`
	Service     string    `json:"service,omitempty"` // namespace/name
	Port        *string   `json:"port,omitempty"`    // of services and backends: the port's name, may be ""
	Protocol    string    `json:"protocol,omitempty"`
	Backend     string    `json:"backend,omitempty"` // address and port
	State       string    `json:"state,omitempty"`
	Client      string    `json:"client,omitempty"`
	BackendNode *string   `json:"backend_node,omitempty"` // of backends and nodes: "" unknown
	ClientZone  *string   `json:"client_zone,omitempty"`  // of zones: this node's, "" unknown
	BackendZone *string   `json:"backend_zone,omitempty"` // of backends, nodes and zones: "" unknown

	New       float64  `json:"new_per_second"`
	Open      uint64   `json:"open"`
	BytesIn   *float64 `json:"bytes_in_per_second"` // null: not known
	BytesOut  *float64 `json:"bytes_out_per_second"`
	Failed    float64  `json:"failed_per_second"`
	SYN50     *float64 `json:"syn_p50_us"` // null: no connection was answered in this time
	SYN99     *float64 `json:"syn_p99_us"`
	CrossZone *float64 `json:"cross_zone_bytes_per_second"`

	Refused    float64 `json:"refused_per_second"` // what failed_per_second is the sum of
	Unanswered float64 `json:"unanswered_per_second"`
	Rejected   float64 `json:"rejected_per_second"`
	Dropped    float64 `json:"dropped_per_second"`

	of topOf
}

// idle: there is nothing to tell of it.
func (r *topRow) idle() bool {
	return r.New+float64(r.Open)+value(r.BytesIn)+value(r.BytesOut)+r.Failed == 0
}

// topDocumentOf makes a view's rows of what a meter told, in one of topSorts.
func topDocumentOf(view, node, sort string, g *maps.Gains) topDocument {
	doc := topDocument{Node: node, Time: g.Time.UTC(), View: view, Interval: round(g.Interval.Seconds(), 3)}
	doc.Rows = topRowsOf(view, node, g, sortedLines(topLines(view, g), sort, math.MaxInt))
	return doc
}

// topRowsOf makes rows for people: a list in JSON, also where nothing goes on.
func topRowsOf(view, node string, g *maps.Gains, lines []topLine) []topRow {
	rows := make([]topRow, 0, len(lines))
	for i := range lines {
		row, of := lines[i].named(), &lines[i].of
		switch view {
		case topBackends, topNodes:
			row.BackendNode, row.BackendZone = &of.node, &of.zone
		case topZones:
			row.ClientZone, row.BackendZone = &g.Zone, &of.zone
		}
		row.Node, row.Time = node, g.Time.UTC()
		row.count(lines[i].gain, g.Interval, view != topClients)
		rows = append(rows, row)
	}
	return rows
}

// named is a row that has its texts alone.
func (l *topLine) named() topRow {
	row := topRow{of: l.of, State: l.state}
	if l.of.port != (lb.PortName{}) {
		row.Service, row.Port, row.Protocol = l.of.port.Service.String(), &l.of.port.Port, l.of.port.Protocol.String()
	}
	switch at := l.of.address; {
	case !at.IsValid():
	case l.of.port == (lb.PortName{}):
		row.Client = at.Addr().String()
	default:
		row.Backend = at.String()
	}
	return row
}

// count fills in what came in an interval. bytes: they are counted of such rows.
func (r *topRow) count(g *maps.Gain, interval time.Duration, bytes bool) {
	rate := func(n uint64) float64 { return rateOf(n, interval) }
	r.New, r.Open, r.Failed = rate(g.Connections), g.Open, rate(g.Failed())
	r.SYN50, r.SYN99 = g.SYN.Told()
	r.Refused, r.Unanswered, r.Rejected, r.Dropped = rate(g.Refused), rate(g.Unanswered), rate(g.Rejected), rate(g.Dropped)
	if bytes {
		in, out, cross := rate(g.BytesTo), rate(g.BytesFrom), rate(g.CrossZone)
		r.BytesIn, r.BytesOut, r.CrossZone = &in, &out, &cross
	}
}

// rateOf is a rate, to two digits; 0 of the first look, which has no interval.
func rateOf(n uint64, interval time.Duration) float64 {
	if interval <= 0 {
		return 0
	}
	return round(float64(n)/interval.Seconds(), 2)
}

func round(value float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(value*scale) / scale
}

// value is 0 where there is none.
func value(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// name is what the row is of, as a table shows it.
func (r *topRow) name() string {
	switch {
	case r.Client != "":
		return r.Client
	case r.Service != "":
		service := table.WithPort(r.Service, text(r.Port))
		if r.Protocol != "TCP" && !saysProtocol(text(r.Port), r.Protocol) {
			service += "/" + r.Protocol
		}
		return service
	}
	return text(r.BackendNode)
}

// saysProtocol tells of a port's name that a part of it is the protocol: "udp", "dns-udp".
func saysProtocol(port, protocol string) bool {
	return slices.ContainsFunc(strings.Split(port, "-"), func(part string) bool { return strings.EqualFold(part, protocol) })
}
