// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"strings"
	"testing"
)

func join(lines [][]byte) string {
	var out strings.Builder
	for _, line := range lines {
		out.Write(line)
		out.WriteByte(' ')
	}
	return strings.TrimSpace(out.String())
}

func TestARingForgetsTheOldestLines(t *testing.T) {
	r := NewRing(3 * (lineCost + 2))
	lines, next, forgotten, news := r.From(0)
	if len(lines) != 0 || next != 0 || forgotten != 0 {
		t.Fatalf("an empty ring has %q, %d, %d", lines, next, forgotten)
	}
	for n := range 5 {
		r.Add(fmt.Appendf(nil, "l%d", n))
	}
	select {
	case <-news:
	default:
		t.Error("who waits was not told")
	}
	lines, next, forgotten, news = r.From(next)
	if got := join(lines); got != "l2 l3 l4" || next != 5 || forgotten != 2 {
		t.Errorf("got %q, %d, %d", got, next, forgotten)
	}
	select {
	case <-news:
		t.Error("nothing came, and who waits was told")
	default:
	}
	r.Add([]byte("l5"))
	if lines, next, forgotten, _ = r.From(next); join(lines) != "l5" || next != 6 || forgotten != 0 {
		t.Errorf("got %q, %d, %d", lines, next, forgotten)
	}
	if lines, next, _, _ = r.From(100); len(lines) != 0 || next != 6 {
		t.Errorf("from a number that is not there yet: %q, %d", lines, next)
	}
}

func TestARingIsNoLargerThanItsLimit(t *testing.T) {
	const limit = 4096
	r := NewRing(limit)
	for n := range 10_000 {
		r.Add([]byte(strings.Repeat("x", n%300)))
		sum := 0
		for _, line := range r.lines {
			sum += len(line) + lineCost
		}
		if sum != r.bytes || sum > limit {
			t.Fatalf("after %d lines: %d bytes, counted %d", n+1, sum, r.bytes)
		}
	}
	r.Add(make([]byte, 2*limit))
	if lines, _, _, _ := r.From(0); len(lines) != 1 {
		t.Errorf("beside a line that is too long %d are kept", len(lines)-1)
	}
}
