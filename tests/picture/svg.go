// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

// colours of a terminal, as CSS writes them.
type colours struct{ back, text, dim, strong, node, zone, far, refused string }

var themes = map[string]colours{
	"light": {back: "#ffffff", text: "#1f2328", dim: "#59636e", strong: "#1f2328", node: "#116329", zone: "#7d4e00", far: "#6639ba", refused: "#a40e26"},
	"dark":  {back: "#0d1117", text: "#d1d7e0", dim: "#9198a1", strong: "#f0f6fc", node: "#56d364", zone: "#e3b341", far: "#d2a8ff", refused: "#ff7b72"},
}

var (
	// left out: of one machine alone.
	numbers  = regexp.MustCompile(`^  (arrived at every client|slowest refusal) after |^  n\d zone `)
	ofOneRun = regexp.MustCompile(`, in [0-9.]+ m?s$`)
	expected = regexp.MustCompile(`^  expected `)
	words    = regexp.MustCompile(`web-\d \((?:same node|same zone|other zone)\)|refused|\bok$|FAILED.*`)
)

// lasting gives the demo's lines without those that the next run prints otherwise. What was expected is left out where the same was seen:
// the demo says ok then.
func lasting(printed string) []string {
	lines := []string{"$ make demo"}
	for line := range strings.Lines(strings.TrimSpace(printed)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case numbers.MatchString(line), expected.MatchString(line):
		case strings.HasPrefix(line, "  seen  "):
			lines = append(lines, "  "+strings.TrimLeft(line[len("  seen  "):], " "))
		case line == "  ok": // beside what was seen
			lines[len(lines)-1] += "  ok"
		default:
			lines = append(lines, ofOneRun.ReplaceAllString(line, ""))
		}
	}
	return lines
}

const (
	charWidth  = 8.4 // of a monospace font of 14 pixels
	lineHeight = 19
	margin     = 16
)

// svg draws lines as a terminal shows them. Nothing in it is loaded from elsewhere.
func svg(lines []string, c colours) string {
	columns := 0
	for _, line := range lines {
		columns = max(columns, len([]rune(line)))
	}
	width, height := int(float64(columns)*charWidth)+2*margin, len(lines)*lineHeight+2*margin
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="nearlb demo">`+"\n", width, height, width, height)
	fmt.Fprintf(&out, `<!-- made by make picture from a run of nearlb demo --><rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", c.back)
	fmt.Fprintf(&out, `<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14" fill="%s" xml:space="preserve">`+"\n", c.text)
	for i, line := range lines {
		if line != "" {
			fmt.Fprintf(&out, `<text x="%d" y="%d"%s>%s</text>`+"\n", margin, margin+lineHeight*i+14, emphasis(line, c), c.paint(line))
		}
	}
	return out.String() + "</g></svg>\n"
}

// emphasis is of whole lines.
func emphasis(line string, c colours) string {
	switch {
	case strings.HasPrefix(line, "$ "), strings.HasPrefix(line, "step "), strings.HasPrefix(line, "all "):
		return fmt.Sprintf(` font-weight="bold" fill="%s"`, c.strong)
	case !strings.HasPrefix(line, "  ") && !strings.Contains(line, "lost"):
		return fmt.Sprintf(` fill="%s"`, c.dim)
	}
	return ""
}

// paint colours who answered by how near it is.
func (c colours) paint(line string) string {
	if !strings.HasPrefix(line, "  ") {
		return html.EscapeString(line)
	}
	var out strings.Builder
	last := 0
	for _, at := range words.FindAllStringIndex(line, -1) {
		word := line[at[0]:at[1]]
		fmt.Fprintf(&out, `%s<tspan fill="%s">%s</tspan>`, html.EscapeString(line[last:at[0]]), c.of(word), html.EscapeString(word))
		last = at[1]
	}
	return out.String() + html.EscapeString(line[last:])
}

func (c colours) of(word string) string {
	switch {
	case strings.Contains(word, "same node"), word == "ok":
		return c.node
	case strings.Contains(word, "same zone"):
		return c.zone
	case strings.Contains(word, "other zone"):
		return c.far
	}
	return c.refused
}
