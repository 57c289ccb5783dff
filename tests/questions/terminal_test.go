// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestWhatATerminalShowsHasNoEscapes(t *testing.T) {
	if got := escapes.ReplaceAllString("\x1b[1mNODE\x1b[0m  n1\r\n\x1b[?25lx", ""); got != "NODE  n1\nx" {
		t.Errorf("%q", got)
	}
}

// Each question of the page asks something, and waits for something that only its fault has nearlb print.
func TestEachQuestionIsAsked(t *testing.T) {
	for _, q := range questions() {
		if q.asked == "" || q.fault == "" || q.plant == nil || len(q.commands) == 0 || q.wants == "" {
			t.Errorf("%+v", q)
		}
	}
}
