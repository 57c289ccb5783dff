// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
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

// topOf is what a row of a view is of. It has those fields that the view tells rows apart by.
type topOf struct {
	port       lb.PortName    // of services and backends
	address    netip.AddrPort // of a backend, or of a client without a port
	node, zone string         // of a backend
}

// topLine is a row before anybody reads it: there may be one for each connection of a flood, so that texts are made of those alone that are
// shown.
type topLine struct {
	of    topOf
	state string // of a backend
	gain  *maps.Gain
}

// topLines are the rows of a view, in no order.
func topLines(view string, g *maps.Gains) iter.Seq[topLine] {
	switch view {
	case topServices:
		return linesOf(g.Ports, func(p *maps.PortGain) topLine { return topLine{of: topOf{port: p.Port}, gain: &p.Gain} })
	case topClients:
		return linesOf(g.Clients, func(c *maps.ClientGain) topLine {
			return topLine{of: topOf{address: netip.AddrPortFrom(c.Client, 0)}, gain: &c.Gain}
		})
	case topBackends:
		return linesOf(g.Backends, func(b *maps.BackendGain) topLine {
			return topLine{of: topOf{port: b.Port, address: b.Address, node: b.Node, zone: b.Zone}, state: b.State, gain: &b.Gain}
		})
	}
	return slices.Values(topPlaces(view, g))
}

func linesOf[G any](gains []G, line func(*G) topLine) iter.Seq[topLine] {
	return func(yield func(topLine) bool) {
		for i := range gains {
			if !yield(line(&gains[i])) {
				return
			}
		}
	}
}

// topPlaces sums backends up by their nodes or zones.
func topPlaces(view string, g *maps.Gains) (lines []topLine) {
	sums := map[topOf]*maps.Gain{}
	for i := range g.Backends {
		b := &g.Backends[i]
		at := topOf{node: b.Node, zone: b.Zone}
		if view == topZones {
			at.node = ""
		}
		if sums[at] == nil {
			sums[at] = &maps.Gain{}
		}
		sums[at].Add(&b.Gain)
	}
	for at, sum := range sums {
		lines = append(lines, topLine{of: at, gain: sum})
	}
	return lines
}

// idle: there is nothing to tell of it.
func (l *topLine) idle() bool {
	return l.gain.Connections+l.gain.Open+l.gain.BytesTo+l.gain.BytesFrom+l.gain.Failed() == 0
}

// contains says whether what names it has a text, which is in lower case.
func (l *topLine) contains(text string) bool {
	if text == "" {
		return true
	}
	row := l.named()
	return strings.Contains(strings.ToLower(strings.Join([]string{row.name(), row.Backend, l.of.node, l.of.zone}, " ")), text)
}

// topSorts are the orders of rows: by the values of --sort, the largest first, but names.
var topSorts = []struct {
	name  string
	value func(*maps.Gain) float64 // nil: by name alone
}{
	{"new", func(g *maps.Gain) float64 { return float64(g.Connections) }},
	{"open", func(g *maps.Gain) float64 { return float64(g.Open) }},
	{"in", func(g *maps.Gain) float64 { return float64(g.BytesTo) }},
	{"out", func(g *maps.Gain) float64 { return float64(g.BytesFrom) }},
	{"failed", func(g *maps.Gain) float64 { return float64(g.Failed()) }},
	{"syn", func(g *maps.Gain) float64 { _, most := g.SYN.Told(); return value(most) }},
	{"cross", func(g *maps.Gain) float64 { return float64(g.CrossZone) }},
	{"name", nil},
}

func topSortNames() (names []string) {
	for _, s := range topSorts {
		names = append(names, s.name)
	}
	return names
}

// sortedLines are the first rows in one of topSorts, at most so many; where that is the same by new connections, what is open, and name.
func sortedLines(lines iter.Seq[topLine], by string, most int) []topLine {
	type valued struct {
		topLine
		value float64
	}
	value := topSorts[0].value
	for _, s := range topSorts {
		if s.name == by {
			value = s.value
		}
	}
	first := newFirst(most, func(a, b *valued) int {
		order := cmp.Compare(b.value, a.value)
		if value != nil {
			order = cmp.Or(order, cmp.Compare(b.gain.Connections, a.gain.Connections), cmp.Compare(b.gain.Open, a.gain.Open))
		}
		return cmp.Or(order, a.of.compare(&b.of))
	})
	for line := range lines {
		v := valued{topLine: line}
		if value != nil {
			v.value = value(line.gain)
		}
		first.add(v)
	}
	all := make([]topLine, 0, len(first.kept))
	for _, v := range first.sorted() {
		all = append(all, v.topLine)
	}
	return all
}

// compare orders by name.
func (a *topOf) compare(b *topOf) int {
	return cmp.Or(a.port.Compare(b.port), a.address.Compare(b.address), strings.Compare(a.node, b.node), strings.Compare(a.zone, b.zone))
}

// first keeps the first of many values in an order, without keeping all of them.
type first[T any] struct {
	most    int
	compare func(a, b *T) int
	kept    []T
	full    bool // the last one of those that were kept is at most-1: whatever comes after it is none of the first
}

func newFirst[T any](most int, compare func(a, b *T) int) *first[T] {
	return &first[T]{most: most, compare: compare}
}

func (f *first[T]) add(value T) {
	if f.full && f.compare(&value, &f.kept[f.most-1]) >= 0 {
		return
	}
	if f.kept = append(f.kept, value); len(f.kept)/2 >= f.most {
		f.sorted()
	}
}

// sorted are those that are kept now, in their order.
func (f *first[T]) sorted() []T {
	slices.SortFunc(f.kept, func(a, b T) int { return f.compare(&a, &b) })
	if len(f.kept) >= f.most {
		f.kept, f.full = f.kept[:f.most], true
	}
	return f.kept
}
