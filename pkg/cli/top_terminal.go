// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// terminal is what a person sits before: keys come from in, and out is drawn on.
type terminal struct {
	in, out *os.File
}

// terminalOf is nil where either is no terminal.
func terminalOf(in io.Reader, out io.Writer) *terminal {
	from, hasKeys := in.(*os.File)
	to, draws := table.FileOf(out)
	if !hasKeys || !draws || !term.IsTerminal(int(from.Fd())) || !term.IsTerminal(int(to.Fd())) {
		return nil
	}
	return &terminal{from, to}
}

// A live screen's garbage, in parts in a hundred of what it keeps: less where that is much, as in a flood, of each connection of which it has
// a client. It is often run in the agent's container, whose memory it takes.
const (
	littleGarbage = 100
	muchGarbage   = 50
	manyClients   = 50_000 // from which on it keeps much
)

func garbageOf(g *maps.Gains) int {
	if len(g.Clients) >= manyClients {
		return muchGarbage
	}
	return littleGarbage
}

// Another screen without a cursor, and the way back to what was there.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l"
	screenClose = "\x1b[?25h\x1b[?1049l"
)

// run shows what goes on until a person quits, or a signal comes. The terminal is then as it was.
func (t *terminal) run(ctx context.Context, meter *topMeter) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return fmt.Errorf("read keys of the terminal: %w", err)
	}
	fmt.Fprint(t.out, screenOpen)
	defer func() {
		_, closed := fmt.Fprint(t.out, screenClose)
		err = errors.Join(err, closed, term.Restore(int(t.in.Fd()), before))
	}()
	meter.live = true
	defer debug.SetGCPercent(debug.SetGCPercent(littleGarbage))
	screen := &topScreen{options: meter.options}
	return t.follow(ctx, meter, screen, t.keys(ctx), resized)
}

// follow draws after each look, key and change of size.
func (t *terminal) follow(ctx context.Context, meter *topMeter, screen *topScreen, keys <-chan string, resized <-chan os.Signal) error {
	tick := time.NewTimer(meter.options.interval)
	defer tick.Stop()
	screen.take(meter.node, &meter.gains)
	for {
		if err := t.draw(screen); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case key, there := <-keys:
			if !there || screen.press(key) {
				return nil
			}
		case <-tick.C:
			if !screen.paused {
				if err := meter.look(); err != nil {
					return err
				}
				debug.SetGCPercent(garbageOf(&meter.gains))
				screen.take(meter.node, &meter.gains)
			}
			tick.Reset(meter.options.interval) // from the end of a look: two are never nearer
		}
	}
}

// draw writes a frame over the one before, without clearing that first: nothing flickers.
func (t *terminal) draw(screen *topScreen) error {
	width, height, err := term.GetSize(int(t.out.Fd()))
	if err != nil {
		return fmt.Errorf("ask the terminal for its size: %w", err)
	}
	var page strings.Builder
	page.WriteString("\x1b[H")
	for i, line := range screen.frame(width, height) {
		if i > 0 {
			page.WriteString("\r\n")
		}
		page.WriteString(line)
		page.WriteString("\x1b[K")
	}
	page.WriteString("\x1b[J")
	_, err = io.WriteString(t.out, page.String())
	return err
}

// keys are those that are pressed from now on; closed when the terminal is gone.
func (t *terminal) keys(ctx context.Context) <-chan string {
	keys := make(chan string)
	go func() {
		defer close(keys)
		buffer := make([]byte, 256)
		for {
			n, err := t.in.Read(buffer)
			if err != nil {
				return
			}
			for _, key := range pressed(string(buffer[:n])) {
				select {
				case keys <- key:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return keys
}

// keyNames are the sequences that terminals send for keys that are no letters.
var keyNames = []struct{ bytes, name string }{
	{"\x1b[A", "up"}, {"\x1b[B", "down"}, {"\x1b[C", "right"}, {"\x1b[D", "left"}, {"\x1b[H", "home"}, {"\x1b[1~", "home"},
	{"\x1bOA", "up"}, {"\x1bOB", "down"}, {"\x1bOC", "right"}, {"\x1bOD", "left"}, {"\x1bOH", "home"},
	{"\x03", "ctrl-c"}, {"\r", "enter"}, {"\n", "enter"}, {"\x7f", "backspace"}, {"\b", "backspace"},
}

// pressed tells keys apart in what a terminal sends. Sequences of keys that mean nothing here are left out.
func pressed(text string) (keys []string) {
next:
	for text != "" {
		for _, k := range keyNames {
			if rest, found := strings.CutPrefix(text, k.bytes); found {
				keys, text = append(keys, k.name), rest
				continue next
			}
		}
		if rest, escaped := strings.CutPrefix(text, "\x1b"); escaped {
			if text = rest; rest == "" || rest[0] != '[' && rest[0] != 'O' {
				keys = append(keys, "esc")
				continue
			}
			end := strings.IndexFunc(rest[1:], func(r rune) bool { return r >= '@' && r <= '~' })
			if text = ""; end >= 0 {
				text = rest[end+2:]
			}
			continue
		}
		r, length := utf8.DecodeRuneInString(text)
		if text = text[length:]; !table.Unprintable(r) {
			keys = append(keys, string(r))
		}
	}
	return keys
}
