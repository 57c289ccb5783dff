// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/maps"
)

// sparks is how many intervals a line of sparks shows at most.
const sparks = 60

// topSparks are new connections a second of the last intervals, by view and row. They are kept of all views, so that whoever turns to
// another one sees what it was like meanwhile.
type topSparks map[sparkOf][]float64

// sparkOf names a row among those of all views, and without name and place the sum of a view.
type sparkOf struct{ view, name, backend, zone string }

func sparkOfRow(view string, r *topRow) sparkOf {
	return sparkOf{view, r.name(), r.Backend, text(r.BackendZone)}
}

// record adds an interval.
func (s topSparks) record(g *maps.Gains) {
	now := map[sparkOf]float64{}
	for _, view := range topViews {
		sum := 0.0
		rows := topRowsOf(view, g)
		for i := range rows {
			if r := &rows[i]; r.New > 0 {
				sum += r.New
				now[sparkOfRow(view, r)] = r.New
			}
		}
		now[sparkOf{view: view}] = sum
	}
	for key := range s {
		if _, there := now[key]; !there {
			now[key] = 0 // idle now
		}
	}
	for key, value := range now {
		all := append(s[key], value)
		s[key] = all[max(len(all)-sparks, 0):]
		if slices.Max(s[key]) == 0 && key != (sparkOf{view: key.view}) {
			delete(s, key)
		}
	}
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
