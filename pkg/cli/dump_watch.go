// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/table"
)

// differences turns totals into what came a second, from one print of --watch to the next.
type differences[R any] struct {
	dump *dump[R]
	rows map[any]R
	at   time.Time
}

// follow fills in the rates of rows that were there at the print before. A row that is new has gained what it has.
func (d *differences[R]) follow(rows []R, now time.Time) {
	if d.dump.identity == nil {
		return
	}
	seconds := now.Sub(d.at).Seconds()
	next := make(map[any]R, len(rows))
	for i := range rows {
		key := d.dump.identity(&rows[i])
		next[key] = rows[i]
		if before := d.rows[key]; d.rows != nil && seconds > 0 {
			d.dump.rates(&before, &rows[i], seconds)
		}
	}
	d.rows, d.at = next, now
}

// at is the command with the columns of a time.
func (d dump[R]) at(watched bool) dump[R] {
	hidden := table.EachSecond
	if watched {
		hidden = table.OncePrint
	}
	d.columns = slices.DeleteFunc(slices.Clone(d.columns), func(c table.Column[R]) bool { return c.When == hidden })
	return d
}

// gained is what a counter gained a second. One that fell began anew.
func gained(before, now uint64, seconds float64) *float64 {
	if now < before {
		before = 0
	}
	rate := round(float64(now-before)/seconds, 2)
	return &rate
}

// perSecond shows a rate, and nothing before there are two readings.
func perSecond(p *float64, text func(float64) string) string {
	if p == nil {
		return ""
	}
	return text(*p)
}

func sizeRate(perSecond float64) string { return size(uint64(perSecond)) }
