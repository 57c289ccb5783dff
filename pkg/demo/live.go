// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const redrawEvery = 100 * time.Millisecond

// live draws one picture over and over in the same place of a terminal.
type live struct {
	out   io.Writer
	paint painter
	width int

	mu    sync.Mutex
	lines int // height of the picture on the screen
}

func (l *live) begin(d *demo) { l.draw(d) }

func (l *live) follow(d *demo, done <-chan struct{}) {
	ticker := time.NewTicker(redrawEvery)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			l.draw(d)
		}
	}
}

func (l *live) step(d *demo, _ Result) { l.draw(d) }

// end leaves the last picture where it is.
func (l *live) end(d *demo, held Held) {
	l.draw(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.out)
	for _, line := range d.summary(held) {
		fmt.Fprintln(l.out, " "+line)
	}
	l.lines = 0
}

func (l *live) hold(d *demo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.out)
	for _, line := range d.invitation() {
		fmt.Fprintln(l.out, " "+line)
	}
}

// draw replaces the picture. Every line is shorter than the terminal is wide, so that the height is known.
func (l *live) draw(d *demo) {
	picture := l.picture(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	var screen strings.Builder
	if l.lines > 0 {
		fmt.Fprintf(&screen, "\x1b[%dA", l.lines)
	}
	for _, line := range picture {
		screen.WriteString("\r\x1b[K" + line + "\n")
	}
	l.lines = len(picture)
	_, _ = io.WriteString(l.out, screen.String())
}

// painter colours text on terminals that want it.
type painter struct{ on bool }

func (p painter) in(code, text string) string {
	if !p.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	purple = "35"
)

// colour of an outcome by how far away it is.
func colour(tier, outcome string) string {
	switch {
	case tier == "same node":
		return green
	case tier == "same zone":
		return yellow
	case tier == "other zone":
		return purple
	case outcome == refused:
		return red
	}
	return bold + ";" + red
}
