// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/tests/rig"
)

// kubeProxyName is how the other proxy is called in the table.
const kubeProxyName = "kube-proxy"

// column is one proxy at one size.
type column struct {
	size
	proxy string
	figures
}

// row is a line of the table: text says the figures, number the one that is compared with kube-proxy's; 0: none.
type row struct {
	title  string
	text   func(figures) string
	number func(figures) float64
}

var rows = []row{
	{"one endpoint changes, until a new connection obeys: median / p99 / worst",
		func(f figures) string {
			return fmt.Sprintf("%s / %s / %s", span(median(f.change)), span(percentile(f.change, 99)), span(percentile(f.change, 100)))
		}, func(f figures) float64 { return float64(median(f.change)) }},
	{"the same, a second change of that Service 20 ms later: median / worst",
		func(f figures) string { return worst(f.second) }, func(f figures) float64 { return float64(median(f.second)) }},
	{"processor while nothing happens, of a core",
		func(f figures) string { return fmt.Sprintf("%.1f %%", 100*f.idle) }, nil},
	{"processor while the Services are created one by one",
		func(f figures) string { return seconds(f.creation) }, func(f figures) float64 { return float64(f.creation) }},
	{"memory of its own (RssAnon)",
		func(f figures) string { return fmt.Sprintf("%d MiB", f.memory>>20) }, func(f figures) float64 { return float64(f.memory) }},
	{"start with empty tables until everything is published: min / median, processor",
		func(f figures) string { return startText(f.empty) }, func(f figures) float64 { return float64(median(walls(f.empty))) }},
	{"start over what it left: min / median, processor",
		func(f figures) string { return startText(f.over) }, func(f figures) float64 { return float64(median(walls(f.over))) }},
	{"an endpoint of a headless Service changes (`--dns`), until a question is answered with the new one alone: in the kernel, by the responder: median / worst",
		func(f figures) string { return worst(f.kernelNames) + ", " + worst(f.responderNames) },
		func(f figures) float64 { return float64(median(f.kernelNames)) }},
	{"everything fits into tables of default size", func(f figures) string {
		if f.trouble != "" {
			return "no: " + f.trouble
		}
		return "yes"
	}, nil},
}

func walls(starts []start) (out []time.Duration) {
	for _, s := range starts {
		out = append(out, s.wall)
	}
	slices.Sort(out)
	return out
}

func startText(starts []start) string {
	var used []time.Duration
	for _, s := range starts {
		used = append(used, s.processor)
	}
	slices.Sort(used)
	all := walls(starts)
	return fmt.Sprintf("%s / %s, %s", seconds(percentile(all, 0)), seconds(median(all)), seconds(median(used)))
}

func median(sorted []time.Duration) time.Duration { return percentile(sorted, 50) }

// worst is the median and the worst of them.
func worst(sorted []time.Duration) string {
	return fmt.Sprintf("%s / %s", span(median(sorted)), span(percentile(sorted, 100)))
}

// percentile is the value that so many in a hundred do not exceed.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func span(d time.Duration) string {
	switch {
	case d >= time.Second:
		return seconds(d)
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
}

func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// markdown writes the table that docs/performance.md shows.
func markdown(w io.Writer, o options, columns []column) error {
	var b strings.Builder
	kernel, cpu := rig.Machine()
	fmt.Fprintf(&b, "Services x endpoints of each, from an API server in memory (protobuf, streamed lists, TLS), %d other nodes. Up to %d changes, %d starts;\n", otherNodes, o.rounds, o.starts)
	fmt.Fprintf(&b, "Services are created at %d a second. In brackets: kube-proxy's figure divided by nearlb's, of the same run. Linux %s, %s.\n\n", o.rate, kernel, cpu)
	b.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s %s |", c.size, c.proxy)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---:|", len(columns)))
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s |", r.title)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", r.cell(c, columns))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cell is what a column has for the row; nearlb's with how much more kube-proxy's is at the same size.
func (r row) cell(c column, columns []column) string {
	if r.number != nil && r.number(c.figures) == 0 {
		return "-"
	}
	text := r.text(c.figures)
	if r.number == nil || c.proxy == kubeProxyName {
		return text
	}
	for _, other := range columns {
		if other.proxy == kubeProxyName && other.size == c.size {
			if theirs := r.number(other.figures); theirs != 0 {
				text += fmt.Sprintf(" (%s)", ratio(theirs/r.number(c.figures)))
			}
		}
	}
	return text
}

func ratio(r float64) string {
	if r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return thousands(int(cmp.Or(r, 0)))
}
