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
	doc     topDocument
	zone    string
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

// take takes a new document, and what it was made of for the sparks.
func (s *topScreen) take(doc topDocument, g *maps.Gains) {
	s.doc, s.zone = doc, g.Zone
	if s.recent == nil {
		s.recent = topSparks{}
	}
	s.recent.record(g)
}

// press does what a key says; true: quit. turned: rows are to be made anew.
func (s *topScreen) press(key string) (quit, turned bool) {
	if key == "ctrl-c" {
		return true, false
	}
	if s.typing {
		return false, s.edit(key)
	}
	o := s.options
	if s.help && key != "q" {
		s.help = false
		return false, false
	}
	if view := strings.Index("12345", key); len(key) == 1 && view >= 0 {
		o.view, s.first = topViews[view], 0
		return false, true
	}
	if sort := strings.Index(topSortKeys, key); len(key) == 1 && sort >= 0 {
		o.sort = topSorts[sort].name
		return false, true
	}
	switch key {
	case "q":
		return true, false
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
		return false, true
	case "down", "j":
		s.first++
	case "up", "k":
		s.first = max(s.first-1, 0)
	case "home", "g":
		s.first = 0
	}
	return false, false
}

// edit adds a key to the filter.
func (s *topScreen) edit(key string) (turned bool) {
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
	return false
}

func nextSort(now string, forward bool) string {
	names := topSortNames()
	step := len(names) - 1
	if forward {
		step = 1
	}
	return names[(slices.Index(names, now)+step)%len(names)]
}

// rows are those that are shown.
func (s *topScreen) rows() []topRow {
	wanted := strings.ToLower(s.filter)
	return slices.DeleteFunc(slices.Clone(s.doc.Rows), func(r topRow) bool {
		of := strings.ToLower(strings.Join([]string{r.name(), r.Backend, text(r.BackendNode), text(r.BackendZone)}, " "))
		return !s.options.idle && r.idle() || !strings.Contains(of, wanted)
	})
}

// frame draws the screen: at most height lines of at most width columns.
func (s *topScreen) frame(width, height int) []string {
	lines := []string{s.title(), s.totals(width)}
	switch rows := s.rows(); {
	case s.help:
		lines = append(lines, "")
		for _, k := range topKeys {
			lines = append(lines, fmt.Sprintf("  %-16s  %s", k[0], k[1]))
		}
	case len(rows) == 0 && s.filter != "":
		lines = append(lines, "", "No row contains "+table.Printable(s.filter)+": Esc shows all.")
	case len(rows) == 0:
		lines = append(lines, "", "Nothing goes on: no connection is open, and none came.")
	default:
		lines = append(lines, s.table(rows, width, height-3)...)
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
	where := "node " + table.OrDash(s.doc.Node) + "  zone " + table.OrDash(s.zone)
	return fmt.Sprintf("nearlb top %s  %s  %s  by %s", s.doc.View, where, s.doc.Time.Format("15:04:05Z"), s.options.sort)
}

// totals sums the view up.
func (s *topScreen) totals(width int) string {
	var sum topRow
	in, out := 0.0, 0.0
	for i := range s.doc.Rows {
		r := &s.doc.Rows[i]
		sum.New, sum.Open, sum.Failed = sum.New+r.New, sum.Open+r.Open, sum.Failed+r.Failed
		in, out = in+value(r.BytesIn), out+value(r.BytesOut)
	}
	bytes := fmt.Sprintf("in/s %s  out/s %s  ", size(uint64(in)), size(uint64(out)))
	if s.doc.View == topClients {
		bytes = "" // nothing counts them
	}
	text := fmt.Sprintf("new/s %s  open %d  %sfail/s %s  ", rate(sum.New), sum.Open, bytes, rate(sum.Failed))
	return text + sparkline(s.recent[sparkOf{view: s.doc.View}], min(sparks, width-utf8.RuneCountInString(text)))
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

func (s *topScreen) table(rows []topRow, width, height int) []string {
	columns := topColumns(s.options.view)
	if width >= sparkFrom {
		columns = append(columns, table.Column[topRow]{Heading: "NEW/S, LAST 30", Cell: func(r topRow) string { return sparkline(s.recent[sparkOfRow(s.doc.View, &r)], 30) }})
	}
	var page bytes.Buffer
	if err := table.LayColumns(&page, width, false, false, columns, rows); err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimRightFunc(page.String(), unicode.IsSpace), "\n")
	heading, lines := lines[0], lines[1:]
	s.first = min(s.first, max(len(lines)-height, 0))
	return append([]string{heading}, lines[s.first:]...)
}
