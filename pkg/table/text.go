// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// OneLine makes one line of an error's text: newlines become "; ", other control characters are escaped.
func OneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return Printable(strings.Join(lines, "; "))
}

// Printable escapes what would move a terminal's cursor, change its colours or turn text around. Names in API objects
// are checked, but those in files need not be. So are bytes that are no UTF-8: a terminal may take some of them for the same.
func Printable(text string) string {
	if !strings.ContainsFunc(text, Unprintable) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for at, r := range text {
		_, size := utf8.DecodeRuneInString(text[at:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[at])
		case !Unprintable(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// Unprintable tells of what Printable escapes.
func Unprintable(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }

// WriteFolded writes a text that goes on below its own beginning where the terminal ends.
func WriteFolded(w io.Writer, width int, label, text string) {
	room := width - len(label)
	for first := true; ; first = false {
		line := text
		if width > 0 && room > 20 && len(text) > room {
			at := strings.LastIndexByte(text[:room+1], ' ')
			if at <= 0 {
				for at = room; !utf8.RuneStart(text[at]); at-- {
				}
			}
			line = text[:at]
		}
		if !first {
			label = strings.Repeat(" ", len(label))
		}
		fmt.Fprintf(w, "%s%s\n", label, line)
		if text = strings.TrimPrefix(text[len(line):], " "); text == "" {
			return
		}
	}
}
