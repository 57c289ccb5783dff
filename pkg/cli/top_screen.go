// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// topScreen is what nearlb top shows on a terminal, and what keys do to it. It draws nothing by itself: a frame is lines of text.
type topScreen struct {
	options *topOptions
	node    string
	gains   *maps.Gains // of the last look
	rows    []topRow    // of the view: the first of those that are to be shown
	all     int         // how many those are
	sum     maps.Gain   // of the whole view
	filter  string
	typing  bool // keys go to the filter
	paused  bool
	help    bool
	first   int // row at the top
	recent  topSparks
}

// topKeys are the keys and what they do, as the help tells.
var topKeys = [][2]string{
	{"1 2 3 4 5", "services, backends, clients, zones, nodes"},
	{"< >", "sort by the column before, the next one"},
	{"n o i u f y x a", "sort by NEW, OPEN, IN, OUT, FAIL, SYN, XZONE, name"},
	{"/", "only rows that contain a text (Esc: all again)"},
	{"up down j k", "scroll; Home g: to the first row"},
	{"z", "what is idle (zero), too"},
	{"p space", "pause"},
	{"h ?", "this help"},
	{"q ctrl-c", "quit"},
}

// topSortKeys are the letters of topSorts, in their order.
const topSortKeys = "noiufyxa"

// screenRows is how many rows a screen has: nobody scrolls through more, and the filter finds the others.
const screenRows = 1000

// take takes what a look told.
func (s *topScreen) take(node string, g *maps.Gains) {
	s.node, s.gains = node, g
	if s.recent == nil {
		s.recent = topSparks{}
	}
	s.recent.record(g)
	s.make()
}

// make makes the rows of the view, which a key may have changed.
func (s *topScreen) make() {
	o, text := s.options, strings.ToLower(s.filter)
	s.sum, s.all = maps.Gain{}, 0
	lines := sortedLines(func(yield func(topLine) bool) {
		for line := range topLines(o.view, s.gains) {
			of := *line.gain
			of.SYN = nil // which nobody asks the sum for
			s.sum.Add(&of)
			if !o.idle && line.idle() || !line.contains(text) {
				continue
			}
			if s.all++; !yield(line) {
				return
			}
		}
	}, o.sort, screenRows)
	s.rows = topRowsOf(o.view, s.node, s.gains, lines)
}

// press does what a key says; true: quit.
func (s *topScreen) press(key string) (quit bool) {
	switch {
	case key == "ctrl-c", key == "q" && !s.typing:
		return true
	case s.typing:
		s.edit(key)
	case s.help:
		s.help = false
	default:
		s.turn(key)
	}
	s.make()
	return false
}

// turn does what a key says beside the filter and the help.
func (s *topScreen) turn(key string) {
	o := s.options
	if view := strings.Index("12345", key); len(key) == 1 && view >= 0 {
		o.view, s.first = topViews[view], 0
	}
	if sort := strings.Index(topSortKeys, key); len(key) == 1 && sort >= 0 {
		o.sort = topSorts[sort].name
	}
	switch key {
	case "h", "?":
		s.help = true
	case "p", " ":
		s.paused = !s.paused
	case "/":
		s.typing, s.filter = true, ""
	case "esc":
		s.filter = ""
	case "z":
		o.idle = !o.idle
	case "<", "left", ">", "right":
		o.sort = nextSort(o.sort, key == ">" || key == "right")
	case "down", "j":
		s.first++
	case "up", "k":
		s.first = max(s.first-1, 0)
	case "home", "g":
		s.first = 0
	}
}

// edit adds a key to the filter.
func (s *topScreen) edit(key string) {
	s.first = 0
	switch {
	case key == "enter":
		s.typing = false
	case key == "esc":
		s.typing, s.filter = false, ""
	case key == "backspace":
		_, last := utf8.DecodeLastRuneInString(s.filter)
		s.filter = s.filter[:len(s.filter)-last]
	case utf8.RuneCountInString(key) == 1:
		s.filter += key
	}
}

func nextSort(now string, forward bool) string {
	names := topSortNames()
	step := len(names) - 1
	if forward {
		step = 1
	}
	return names[(slices.Index(names, now)+step)%len(names)]
}

// frame draws the screen: at most height lines of at most width columns.
func (s *topScreen) frame(width, height int) []string {
	lines := []string{s.title(), s.totals(width)}
	switch {
	case s.help:
		lines = append(lines, "")
		for _, k := range topKeys {
			lines = append(lines, fmt.Sprintf("  %-16s  %s", k[0], k[1]))
		}
	case len(s.rows) == 0 && s.filter != "":
		lines = append(lines, "", "No row contains "+table.Printable(s.filter)+": Esc shows all.")
	case len(s.rows) == 0:
		lines = append(lines, "", "Nothing goes on: no connection is open, and none came.")
	default:
		lines = append(lines, s.table(width, height-4)...)
	}
	lines = fitted(lines, width, height-1)
	return append(lines, fitted([]string{s.foot()}, width, 1)...)
}

// fitted cuts lines to what a terminal has room for, and fills up with empty ones.
func fitted(lines []string, width, height int) []string {
	all := make([]string, max(height, 0))
	for i := range all {
		if i >= len(lines) {
			continue
		}
		if all[i] = lines[i]; utf8.RuneCountInString(lines[i]) > width {
			all[i] = string([]rune(lines[i])[:max(width, 0)])
		}
	}
	return all
}

func (s *topScreen) title() string {
	where := "node " + table.OrDash(s.node) + "  zone " + table.OrDash(s.gains.Zone)
	title := fmt.Sprintf("nearlb top %s  %s  %s  by %s", s.options.view, where, s.gains.Time.UTC().Format("15:04:05Z"), s.options.sort)
	if len(s.rows) < s.all {
		title += fmt.Sprintf("  %d of %d", len(s.rows), s.all)
	}
	return title
}

// totals sums the view up.
func (s *topScreen) totals(width int) string {
	every := s.gains.Interval
	bytes := fmt.Sprintf("in/s %s  out/s %s  ", size(uint64(rateOf(s.sum.BytesTo, every))), size(uint64(rateOf(s.sum.BytesFrom, every))))
	if s.options.view == topClients {
		bytes = "" // nothing counts them
	}
	text := fmt.Sprintf("new/s %s  open %d  %sfail/s %s  ", rate(rateOf(s.sum.Connections, every)), s.sum.Open, bytes, rate(rateOf(s.sum.Failed(), every)))
	return text + sparkline(s.recent[s.options.view].sum, min(sparks, width-utf8.RuneCountInString(text)))
}

func (s *topScreen) foot() string {
	switch {
	case s.typing:
		return "/" + table.Printable(s.filter) + "_  Enter: keep  Esc: all"
	case s.paused:
		return "PAUSED  p: go on  h: help  q: quit"
	case s.filter != "":
		return "filter " + table.Printable(s.filter) + "  Esc: all  /: another  h: help  q: quit"
	}
	return "1-5: view  < >: sort  /: filter  p: pause  h: help  q: quit"
}

// sparkFrom is the width of a terminal that has room for sparks in each row.
const sparkFrom = 120

// aheadRows are laid out together, so that columns stay where they are while a person scrolls a page.
const aheadRows = 100

// table has a line for each row, from the one that was scrolled to. height is that of its rows.
func (s *topScreen) table(width, height int) []string {
	columns := topColumns(s.options.view)
	if width >= sparkFrom {
		recent := s.recent[s.options.view]
		columns = append(columns, table.Column[topRow]{Heading: "NEW/S, LAST 30", Right: true, Cell: func(r topRow) string { return sparkline(recent.of(r.of), 30) }})
	}
	s.first = min(s.first, max(len(s.rows)-height, 0))
	var page bytes.Buffer
	if err := table.LayColumns(&page, width, false, false, columns, s.rows[s.first:min(len(s.rows), s.first+max(height, aheadRows))]); err != nil {
		return []string{err.Error()}
	}
	return strings.Split(strings.TrimRightFunc(page.String(), unicode.IsSpace), "\n")
}
