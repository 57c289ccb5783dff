// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Outputs of several nodes and times add up: in every format but tables each row says whose it is and when it was read.
func TestRowsKnowTheirNodeAndTheTime(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 5, time.UTC)
	row := flowOf(1)
	row.Node = "n2" // the backend's
	own, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(string(own), "{", `{"onNode":"n1","time":"2026-11-27T12:00:00.000000005Z",`, 1)
	for format, wants := range map[string]string{
		command.FormatJSONL: want + "\n", command.FormatJSON: `  {
    "onNode": "n1",
    "time": "2026-11-27T12:00:00.000000005Z",
    "service"`, command.FormatYAML: "\n  onNode: n1\n",
		"jsonpath={.items[*].onNode} {.items[*].node} {.items[*].time}": "n1 n2 2026-11-27T12:00:00.000000005Z",
	} {
		for what, write := range map[string]func(*shown[maps.FlowRow], *bytes.Buffer) error{
			"all": func(s *shown[maps.FlowRow], out *bytes.Buffer) error { return s.all(out, 0, []maps.FlowRow{row}) },
			"each": func(s *shown[maps.FlowRow], out *bytes.Buffer) error {
				one := iter.Seq2[maps.FlowRow, error](func(yield func(maps.FlowRow, error) bool) { yield(row, nil) })
				return s.each(out, 0, one, (*maps.FlowRow).Compare)
			},
		} {
			show := showFlows(t, format)
			show.stamp = newStamp("n1", at)
			var out bytes.Buffer
			if err := write(show, &out); err != nil || !strings.Contains(out.String(), wants) {
				t.Errorf("-o %s, %s: %v\n%s\nwant\n%s", format, what, err, out.String(), wants)
			}
		}
	}
}

// Rows that are printed as they come have them, too, and a node that nobody knows is left out.
func TestManyRowsKnowTheTime(t *testing.T) {
	for _, format := range []string{command.FormatJSON, command.FormatJSONL, command.FormatYAML} {
		show := showFlows(t, format)
		show.stamp = newStamp("", time.Unix(1, 0))
		var out bytes.Buffer
		if err := show.each(&out, 0, flowsOf(manyRows+1), (*maps.FlowRow).Compare); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "time"); n < manyRows+1 || strings.Contains(out.String(), nodeOfRows) {
			t.Errorf("-o %s: %d times in %d rows", format, n, manyRows+1)
		}
	}
}

const nodeOfRows = "onNode"
