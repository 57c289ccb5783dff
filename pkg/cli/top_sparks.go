// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/maps"
)

// sparks is how many intervals a line of sparks shows at most.
const sparks = 60

// sparkRows is how many rows of a view have a line: the busiest of the last minute. A flood may come from more clients than a command should
// remember.
const sparkRows = 500

// topSparks are new connections a second of the last intervals, by view. They are kept of all views, so that whoever turns to another one
// sees what it was like meanwhile.
type topSparks map[string]*viewSparks

// viewSparks are those of one view: of its sum, and of its rows.
type viewSparks struct {
	sum  []float64
	rows map[topOf]*rowSparks
}

type rowSparks struct {
	of     topOf
	values []float64
	total  float64
}

// record adds an interval.
func (s topSparks) record(g *maps.Gains) {
	for _, view := range topViews {
		if s[view] == nil {
			s[view] = &viewSparks{}
		}
		s[view].record(topLines(view, g), g.Interval)
	}
}

func (v *viewSparks) record(lines iter.Seq[topLine], interval time.Duration) {
	for _, r := range v.rows {
		r.values = recorded(r.values, 0)
	}
	busiest, sum := newFirst(sparkRows, func(a, b *rowSparks) int { return cmp.Compare(b.total, a.total) }), uint64(0)
	for line := range lines {
		connections := line.gain.Connections
		if sum += connections; connections == 0 {
			continue
		}
		if r := v.rows[line.of]; r != nil {
			r.values[len(r.values)-1] = rateOf(connections, interval)
		} else {
			busiest.add(rowSparks{of: line.of, total: rateOf(connections, interval)})
		}
	}
	v.sum = recorded(v.sum, rateOf(sum, interval))
	for _, r := range v.rows {
		r.total = 0
		for _, value := range r.values {
			r.total += value
		}
		busiest.add(*r)
	}
	v.rows = map[topOf]*rowSparks{}
	for _, r := range busiest.sorted() {
		if r.values == nil {
			r.values = []float64{r.total}
		}
		if r.total > 0 {
			v.rows[r.of] = &r
		}
	}
}

// recorded is a line with another value.
func recorded(line []float64, value float64) []float64 {
	line = append(line, value)
	return line[max(len(line)-sparks, 0):]
}

// of is a row's line.
func (v *viewSparks) of(of topOf) []float64 {
	if r := v.rows[of]; r != nil {
		return r.values
	}
	return nil
}

// sparkline draws the last values, the largest as a full block.
func sparkline(values []float64, width int) string {
	const blocks = "▁▂▃▄▅▆▇█"
	if width <= 0 || len(values) == 0 {
		return ""
	}
	values = values[max(len(values)-width, 0):]
	largest := slices.Max(values)
	var line strings.Builder
	for _, v := range values {
		level := 0
		if largest > 0 {
			level = int(v / largest * 7.999)
		}
		line.WriteRune([]rune(blocks)[level])
	}
	return line.String()
}
