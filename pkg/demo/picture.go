// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// wide is the width from which on there is room for bars and sentences.
const wide = 120

// picture is the whole live table, line by line.
func (l *live) picture(d *demo) []string {
	lines := l.heading(d)
	lines = append(lines, l.matrix(d)...)
	lines = append(lines, "")
	lines = append(lines, l.state(d)...)
	lines = append(lines, "")
	return append(lines, l.steps(d)...)
}

func (l *live) heading(d *demo) []string {
	clock := fmt.Sprintf("%4.1f s", time.Since(d.watch.started).Seconds())
	text := fmt.Sprintf(" three nodes, two zones; Service %s port %d, TCP and UDP", clusterIP4+" "+clusterIP6, servicePort)
	if l.width < wide {
		text = fmt.Sprintf(" %s, %s, port %d, TCP and UDP", clusterIP4, clusterIP6, servicePort)
	}
	return []string{l.paint.in(bold, pad(" nearlb demo", 12)) + pad(text, l.width-22) + right(clock, 8), ""}
}

// matrix shows each client's answers by backend, a second back, and whether every protocol and family is right.
func (l *live) matrix(d *demo) []string {
	cell := l.cellWidth(d)
	top, sub := pad("", 11), pad(" client", 11)
	for i, s := range d.servers {
		top += pad(s.Name, cell)
		sub += pad(d.nodes[i].Name+" zone "+d.nodes[i].Options.Zone, cell)
	}
	lines := []string{
		l.paint.in(dim, top+pad("", 9)+"TCP  UDP  TCP  UDP"),
		l.paint.in(dim, sub+pad(refused, 9)+"IPv4 IPv4 IPv6 IPv6"),
	}
	for i, rates := range d.watch.rates() {
		lines = append(lines, l.row(d, i, rates, cell))
	}
	return lines
}

func (l *live) cellWidth(d *demo) int { return (l.width - 1 - 11 - 9 - 20) / len(d.servers) }

func (l *live) row(d *demo, client int, rates map[string]int, cell int) string {
	sum, others := 0, 0
	for _, n := range rates {
		sum += n
	}
	others = sum
	line := pad(fmt.Sprintf(" %s zone %s", d.nodes[client].Name, d.nodes[client].Options.Zone), 11)
	for _, s := range d.servers {
		others -= rates[s.Name]
		line += l.cell(d.tier(client, s.Name), s.Name, rates[s.Name], sum, cell)
	}
	text := ""
	if others > 0 {
		text = fmt.Sprintf("%d/s", others)
	}
	line += l.paint.in(red, pad(text, 9))
	for _, ok := range d.watch.right(client) {
		line += l.mark(ok)
	}
	return line
}

func (l *live) mark(ok bool) string {
	if ok {
		return l.paint.in(green, pad("ok", 5))
	}
	return l.paint.in(dim, pad("..", 5))
}

// cell says how near the backend is and how many answers a second came from it; a bar shows the share.
func (l *live) cell(tier, outcome string, rate, sum, width int) string {
	if rate == 0 {
		return l.paint.in(dim, pad("-", width))
	}
	room := width - 20
	if room < 10 {
		return l.paint.in(colour(tier, outcome), pad(fmt.Sprintf("%s %d/s", inAWord(tier), rate), width))
	}
	text := pad(fmt.Sprintf("%s %d/s", tier, rate), 17) + strings.Repeat("=", max(1, rate*room/sum))
	return l.paint.in(colour(tier, outcome), pad(text, width))
}

// inAWord shortens a tier.
func inAWord(tier string) string {
	if tier == "other zone" {
		return "far"
	}
	return strings.TrimPrefix(tier, "same ")
}

// state lists what the steps play with.
func (l *live) state(d *demo) []string {
	d.mu.Lock()
	ready, agents := slices.Clone(d.ready), slices.Clone(d.agents)
	d.mu.Unlock()
	servers, processes := pad(" servers", 11), pad(" agents", 11)
	cell := l.cellWidth(d)
	for _, is := range ready {
		if is {
			servers += l.paint.in(green, pad("ready", cell))
		} else {
			servers += l.paint.in(red, pad("not ready", cell))
		}
	}
	for _, agent := range agents {
		select {
		case <-agent.Ended():
			processes += l.paint.in(red, pad("gone", cell))
		default:
			processes += pad(fmt.Sprintf("pid %d", agent.PID()), cell)
		}
	}
	held := d.watch.heldState()
	total, bad := d.watch.count()
	return []string{
		servers, processes,
		pad(fmt.Sprintf("%s%d new, %d lost or wrong; %d held open, %d answers, %d lost", pad(" traffic", 11), total, bad,
			held.Open, held.Answers, held.Lost), l.width-1),
	}
}

// steps lists the steps so far, the running one and those to come.
func (l *live) steps(d *demo) []string {
	d.mu.Lock()
	results, running := slices.Clone(d.results), d.running
	d.mu.Unlock()
	title, expected := l.columns()
	names := make([]string, len(d.nodes))
	for i, n := range d.nodes {
		names[i] = pad(n.Name, 5)
	}
	who := strings.Join(names, " ")
	lines := []string{l.paint.in(dim, pad(" step", title)+pad(who+" expected", expected)+
		pad(who+" seen", seenWidth)+right("after", 7)+"  verdict")}
	for _, r := range results {
		lines = append(lines, l.result(r))
	}
	if running.Number > 0 {
		now := "expected: " + brief(running.Want)
		if expected > 0 {
			now = brief(running.Want)
		}
		lines = append(lines, l.paint.in(bold, pad(numbered(running.Number, running.Title), title))+l.paint.in(dim, now))
	}
	for i := len(results) + min(1, running.Number); i < len(d.steps); i++ {
		lines = append(lines, l.paint.in(dim, pad(numbered(i+1, d.steps[i].title), title)))
	}
	return lines
}

const seenWidth = 27

// columns are the widths of the steps' titles and expectations; narrow terminals have no room for the latter.
func (l *live) columns() (title, expected int) {
	if l.width >= wide {
		return 40, 32
	}
	return 34, 0
}

func (l *live) result(r Result) string {
	code := green
	if !r.OK() {
		code = red
	}
	seen := brief(r.Seen)
	if r.Refusal > 0 {
		seen += " in " + short(r.Refusal)
	}
	title, expected := l.columns()
	verdict := r.Verdict()
	room := l.width - 1 - title - expected - seenWidth - 7 - 2
	return pad(numbered(r.Number, r.Title), title) + pad(brief(r.Want), expected) + pad(seen, seenWidth) + right(took(r), 7) + "  " +
		l.paint.in(code, pad(verdict, min(room, len(verdict))))
}

func numbered(n int, title string) string { return fmt.Sprintf(" %d %s", n, title) }

// pad cuts or fills plain text to a width.
func pad(text string, width int) string {
	if width <= 0 {
		return ""
	}
	if len(text) > width {
		return text[:width]
	}
	return text + strings.Repeat(" ", width-len(text))
}

func right(text string, width int) string {
	if len(text) >= width {
		return text
	}
	return strings.Repeat(" ", width-len(text)) + text
}
