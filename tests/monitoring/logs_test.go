// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var quoted = regexp.MustCompile(`"([a-z]+)"`)

// logKeys are those that tests/structure allows.
func logKeys(t *testing.T) (keys []string) {
	t.Helper()
	_, text, found := strings.Cut(string(read(t, "../structure/logs_test.go")), "var logKeys = []string{")
	text, _, ended := strings.Cut(text, "\n}")
	if !found || !ended {
		t.Fatal("tests/structure has no logKeys")
	}
	for _, match := range quoted.FindAllStringSubmatch(text, -1) {
		keys = append(keys, match[1])
	}
	return append(keys, "time", "level", "msg")
}

// Each line of agents that had a lot to do is an object of known keys.
func testLogs(t *testing.T, w *world) {
	keys, lines := logKeys(t), 0
	for _, n := range w.nodes {
		for line := range strings.Lines(w.log(n)) {
			var entry struct {
				Time  time.Time
				Level string
				Msg   string
			}
			fields := map[string]any{}
			if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time.IsZero() || entry.Level == "" || entry.Msg == "" {
				t.Errorf("%s: no line of a log (%v): %s", n.Name, err, line)
				continue
			}
			_ = json.Unmarshal([]byte(line), &fields)
			for key := range fields {
				if !slices.Contains(keys, key) {
					t.Errorf("%s: key %q is not one of tests/structure's logKeys: %s", n.Name, key, line)
				}
			}
			lines++
		}
	}
	if lines < 50 {
		t.Errorf("%d lines: the agents were not busy", lines)
	}
	t.Logf("%d lines", lines)
}
