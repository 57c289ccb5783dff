// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// The views of nearlb top.
const (
	topServices = "services"
	topBackends = "backends"
	topClients  = "clients"
	topZones    = "zones"
	topNodes    = "nodes"
)

var topViews = []string{topServices, topBackends, topClients, topZones, topNodes}

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
}

// idle: there is nothing to tell of it.
func (r *topRow) idle() bool {
	return r.New+float64(r.Open)+value(r.BytesIn)+value(r.BytesOut)+r.Failed == 0
}

// topDocumentOf makes a view's rows of what a meter told.
func topDocumentOf(view, node string, g *maps.Gains) topDocument {
	doc := topDocument{Node: node, Time: g.Time.UTC(), View: view, Interval: round(g.Interval.Seconds(), 3)}
	doc.Rows = topRowsOf(view, g)
	for i := range doc.Rows {
		doc.Rows[i].Node, doc.Rows[i].Time = node, doc.Time
	}
	return doc
}

func topRowsOf(view string, g *maps.Gains) (rows []topRow) {
	rows = []topRow{}
	switch view {
	case topServices:
		for i := range g.Ports {
			p := &g.Ports[i]
			row := topRow{Service: p.Port.Service.String(), Port: &p.Port.Port, Protocol: p.Port.Protocol.String()}
			rows = append(rows, row.of(&p.Gain, g.Interval, true))
		}
	case topBackends:
		for i := range g.Backends {
			b := &g.Backends[i]
			row := topRow{Service: b.Port.Service.String(), Port: &b.Port.Port, Protocol: b.Port.Protocol.String(), Backend: b.Address.String(), State: b.State,
				BackendNode: &b.Node, BackendZone: &b.Zone}
			rows = append(rows, row.of(&b.Gain, g.Interval, true))
		}
	case topClients:
		for i := range g.Clients {
			row := topRow{Client: g.Clients[i].Client.String()}
			rows = append(rows, row.of(&g.Clients[i].Gain, g.Interval, false))
		}
	default:
		rows = topPlaces(view, g)
	}
	return rows
}

// topPlaces sums backends up by their nodes or zones.
func topPlaces(view string, g *maps.Gains) (rows []topRow) {
	type place struct{ node, zone string }
	rows = []topRow{} // a list in JSON, also where nothing goes on
	sums := map[place]*maps.Gain{}
	for i := range g.Backends {
		b := &g.Backends[i]
		at := place{b.Node, b.Zone}
		if view == topZones {
			at.node = ""
		}
		if sums[at] == nil {
			sums[at] = &maps.Gain{}
		}
		sums[at].Add(&b.Gain)
	}
	for at, sum := range sums {
		row := topRow{BackendZone: &at.zone}
		if view == topZones {
			row.ClientZone = &g.Zone
		} else {
			row.BackendNode = &at.node
		}
		rows = append(rows, row.of(sum, g.Interval, true))
	}
	return rows
}

// of fills in what came in an interval. bytes: they are counted of such rows.
func (r topRow) of(g *maps.Gain, interval time.Duration, bytes bool) topRow {
	rate := func(n uint64) float64 {
		if interval <= 0 {
			return 0
		}
		return round(float64(n)/interval.Seconds(), 2)
	}
	r.New, r.Open, r.Failed = rate(g.Connections), g.Open, rate(g.Failed())
	r.SYN50, r.SYN99 = g.SYN.Told()
	r.Refused, r.Unanswered, r.Rejected, r.Dropped = rate(g.Refused), rate(g.Unanswered), rate(g.Rejected), rate(g.Dropped)
	if bytes {
		in, out, cross := rate(g.BytesTo), rate(g.BytesFrom), rate(g.CrossZone)
		r.BytesIn, r.BytesOut, r.CrossZone = &in, &out, &cross
	}
	return r
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

// topSorts are the orders of rows: by the values of --sort, the largest first, but names.
var topSorts = []struct {
	name  string
	value func(*topRow) float64 // nil: by name alone
}{
	{"new", func(r *topRow) float64 { return r.New }},
	{"open", func(r *topRow) float64 { return float64(r.Open) }},
	{"in", func(r *topRow) float64 { return value(r.BytesIn) }},
	{"out", func(r *topRow) float64 { return value(r.BytesOut) }},
	{"failed", func(r *topRow) float64 { return r.Failed }},
	{"syn", func(r *topRow) float64 { return value(r.SYN99) }},
	{"cross", func(r *topRow) float64 { return value(r.CrossZone) }},
	{"name", nil},
}

func topSortNames() (names []string) {
	for _, s := range topSorts {
		names = append(names, s.name)
	}
	return names
}

// sortTop orders rows by one of topSorts, and where that is the same by new connections, what is open, and name.
func sortTop(rows []topRow, by string) {
	first := func(*topRow) float64 { return 0 }
	named := false
	for _, s := range topSorts {
		if s.name == by && s.value != nil {
			first = s.value
		}
		named = named || s.name == by && s.value == nil
	}
	slices.SortFunc(rows, func(a, b topRow) int {
		order := 0
		if !named {
			order = cmp.Or(cmp.Compare(first(&b), first(&a)), cmp.Compare(b.New, a.New), cmp.Compare(b.Open, a.Open))
		}
		return cmp.Or(order, strings.Compare(a.name(), b.name()), strings.Compare(a.Backend, b.Backend), strings.Compare(text(a.BackendZone), text(b.BackendZone)))
	})
}
