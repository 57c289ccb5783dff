// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// colours of the picture, as CSS writes them.
type colours struct{ back, text, dim, grid, nearlb, kubeProxy string }

var themes = map[string]colours{
	"light": {back: "#ffffff", text: "#1f2328", dim: "#59636e", grid: "#d1d9e0", nearlb: "#116329", kubeProxy: "#a40e26"},
	"dark":  {back: "#0d1117", text: "#f0f6fc", dim: "#9198a1", grid: "#3d444d", nearlb: "#56d364", kubeProxy: "#ff7b72"},
}

// The plot's place in the picture, pixels.
const (
	width, height           = 860, 360
	left, right, top, below = 60, 24, 56, 48
)

// chart draws new connections a second through the death of a node, from the scene of that name. Nothing in it is loaded from elsewhere.
func chart(played []outcome, c colours) string {
	at := slices.IndexFunc(played, func(o outcome) bool { return o.name == "node" })
	if at < 0 {
		return ""
	}
	f := played[at].figures
	p := plot{seconds: f["nearlb"].lasts.Seconds(), most: 1}
	for _, of := range f {
		p.most = max(p.most, slices.Max(append(rates(of.all, of.lasts), 0)))
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="new connections a second through the death of a node">`+"\n", width, height, width, height)
	fmt.Fprintf(&out, `<!-- made by make failover --><rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", c.back)
	fmt.Fprintf(&out, `<g font-family="system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif" font-size="13" fill="%s">`+"\n", c.dim)
	fmt.Fprintf(&out, `<text x="%d" y="26" font-size="15" fill="%s">new connections a second; a node with four of ten backends loses its power</text>`+"\n", left, c.text)
	p.axes(&out, c)
	p.mark(&out, c, f["nearlb"].at, "no power")
	p.mark(&out, c, f["nearlb"].told, "Kubernetes says so")
	for i, line := range []struct{ name, colour string }{{"kube-proxy", c.kubeProxy}, {"nearlb", c.nearlb}} {
		if of, measured := f[line.name]; measured {
			p.line(&out, rates(of.all, of.lasts), line.colour)
			fmt.Fprintf(&out, `<text x="%d" y="46" fill="%s" font-weight="bold">%s</text>`+"\n", left+110*i, line.colour, line.name)
		}
	}
	return out.String() + "</g></svg>\n"
}

// plot is the scale of a chart.
type plot struct {
	seconds float64
	most    int
}

func (p plot) x(seconds float64) float64 { return left + seconds/p.seconds*(width-left-right) }

func (p plot) y(rate int) float64 {
	return height - below - float64(rate)/float64(p.most)*(height-top-below)
}

// axes has a line for each hundred connections, and a number for every ten seconds.
func (p plot) axes(out *strings.Builder, c colours) {
	step := 100
	for p.most/step > 6 {
		step *= 2
	}
	for rate := 0; rate <= p.most; rate += step {
		fmt.Fprintf(out, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s"/>`+"\n", left, width-right, p.y(rate), p.y(rate), c.grid)
		fmt.Fprintf(out, `<text x="%d" y="%.1f" text-anchor="end">%d</text>`+"\n", left-8, p.y(rate)+4, rate)
	}
	for second := 0; float64(second) <= p.seconds; second += 10 {
		fmt.Fprintf(out, `<text x="%.1f" y="%d" text-anchor="middle">%d s</text>`+"\n", p.x(float64(second)), height-below+20, second)
	}
}

// mark is a moment.
func (p plot) mark(out *strings.Builder, c colours, at time.Duration, name string) {
	x := p.x(at.Seconds())
	fmt.Fprintf(out, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-dasharray="4 4"/>`+"\n", x, x, top, height-below, c.dim)
	fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", x+5, height-below-8, name)
}

func (p plot) line(out *strings.Builder, rates []int, colour string) {
	var points []string
	for second, rate := range rates {
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(float64(second)+0.5), p.y(rate)))
	}
	fmt.Fprintf(out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2.5" stroke-linejoin="round"/>`+"\n", strings.Join(points, " "), colour)
}
