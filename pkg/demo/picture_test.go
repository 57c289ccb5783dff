// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestEveryLineOfThePictureFitsTheTerminal(t *testing.T) {
	d := stage()
	arrive(d.watch, time.Now())
	d.results = []Result{
		{Number: 1, Title: d.steps[0].title, Want: own, Seen: own, Requests: 1, Took: 35 * time.Millisecond},
		{Number: 2, Title: d.steps[1].title, Want: next, Seen: []string{"web-1+web-2+timeout", "error", "web-3"}, Requests: 1, Wrong: 3},
		{Number: 3, Title: d.steps[2].title, Want: next, Err: errors.New("something that takes many words to be said as it was meant")},
		{Number: 4, Title: d.steps[3].title, Want: next, Seen: []string{refused, refused, refused}, Requests: 1, Refusal: time.Millisecond},
	}
	d.watch.total, d.watch.totals, d.watch.held = 1234567, 12345, Held{Open: 600, Answers: 123456, Lost: 12345}
	d.running = Result{Number: 5, Title: d.steps[4].title, Want: own}
	for _, width := range []int{80, 100, 119, 120, 160, 250} {
		height := 0
		for _, line := range (&live{width: width}).picture(d) {
			height++
			if len(line) >= width {
				t.Errorf("%d columns: line of %d: %q", width, len(line), line)
			}
		}
		if height > 22 {
			t.Errorf("%d columns: %d lines", width, height)
		}
	}
	if text := strings.Join((&live{width: 80}).picture(d), "\n"); !strings.Contains(text, "35 ms  ok") {
		t.Errorf("picture:\n%s", text)
	}
}
