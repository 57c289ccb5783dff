// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"
)

// flowOf is the i-th of many flows, in an order that is not that of their clients.
func flowOf(i int) maps.FlowRow {
	client := netip.AddrFrom4([4]byte{10, 244, byte(i * 7 % 251), byte(i % 250)})
	return maps.FlowRow{Service: fmt.Sprintf("prod/s%d", i%3), Port: "http", Protocol: "TCP", Client: client, ClientPort: uint16(1024 + i%60000),
		Frontend: netip.MustParseAddr("10.96.0.10"), FrontendPort: 80, Backend: netip.MustParseAddr("10.244.2.10"), BackendPort: 8080, BackendState: "active",
		Source: client, SourcePort: uint16(1024 + i%60000), Flags: []string{}, Seen: []string{}, State: maps.FlowStates()[i%7], IdleSeconds: int64(i), Node: "n2", Zone: "b"}
}

func flowsOf(count int) iter.Seq2[maps.FlowRow, error] {
	return func(yield func(maps.FlowRow, error) bool) {
		for i := range count {
			if !yield(flowOf(i), nil) {
				return
			}
		}
	}
}

func showFlows(t *testing.T, format string) *shown[maps.FlowRow] {
	t.Helper()
	output := &command.OutputFlag{Allowed: []string{command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatJSONL, command.FormatYAML, command.FormatJSONPath}}
	if err := output.Set(format); err != nil {
		t.Fatal(err)
	}
	return &shown[maps.FlowRow]{columns: flowColumns(), empty: "none", output: output}
}

// Of few flows and of many each format has all, whether they are kept or printed as they come.
func TestManyFlowsAreTheSameInPieces(t *testing.T) {
	for _, count := range []int{0, 1, manyRows - 1, manyRows, 2*manyRows + 5} {
		for format, read := range map[string]func([]byte) (int, error){
			command.FormatJSON: func(text []byte) (int, error) {
				var all []maps.FlowRow
				err := json.Unmarshal(text, &all)
				return len(all), err
			},
			command.FormatYAML: func(text []byte) (int, error) {
				var all []maps.FlowRow
				err := yaml.Unmarshal(text, &all)
				return len(all), err
			},
			command.FormatJSONL: func(text []byte) (n int, err error) {
				for line := range bytes.Lines(text) {
					var one maps.FlowRow
					n, err = n+1, errors.Join(err, json.Unmarshal(line, &one))
				}
				return n, err
			},
			command.FormatTable: func(text []byte) (int, error) {
				n := bytes.Count(text, []byte("\n")) - 1
				if bytes.Count(text, []byte("CLIENT")) > 1 {
					return n, errors.New("more than one heading")
				}
				return n, nil
			},
		} {
			if format == command.FormatYAML && count > 1 {
				continue // the reader of YAML takes long for so many
			}
			var out bytes.Buffer
			err := showFlows(t, format).each(&out, 0, flowsOf(count), (*maps.FlowRow).Compare)
			if n, bad := read(out.Bytes()); err != nil || bad != nil || n != count {
				t.Errorf("%d flows as %s: %d, %v, %v", count, format, n, err, bad)
			}
		}
	}
}

// A list that is printed in pieces is, byte for byte, the one that is printed at once.
func TestPiecesOfAListAreTheList(t *testing.T) {
	var rows []maps.FlowRow
	for row := range flowsOf(9) {
		rows = append(rows, row)
	}
	for _, format := range []string{command.FormatJSON, command.FormatJSONL, command.FormatYAML} {
		show := showFlows(t, format)
		var whole, parts bytes.Buffer
		if err := show.all(&whole, 0, rows); err != nil {
			t.Fatal(err)
		}
		out := show.pieces(&parts)
		for some := range slices.Chunk(rows, 4) {
			if err := out.write(0, some); err != nil {
				t.Fatal(err)
			}
		}
		if err := out.end(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(whole.String(), parts.String()); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

func TestAFailedReadOfFlowsIsTold(t *testing.T) {
	bad := errors.New("no table")
	rows := func(yield func(maps.FlowRow, error) bool) { yield(maps.FlowRow{}, bad) }
	if err := showFlows(t, command.FormatTable).each(&bytes.Buffer{}, 0, rows, (*maps.FlowRow).Compare); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
	if _, err := groupFlows(rows, grouping{name: func(*maps.FlowRow) string { return "" }}); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
}

func TestFlowsAreCountedByWhatIsAskedFor(t *testing.T) {
	alias := flowOf(0)
	alias.Flags = []string{"alias"}
	flows := func(yield func(maps.FlowRow, error) bool) {
		for row := range flowsOf(21) {
			if !yield(row, nil) {
				return
			}
		}
		yield(alias, nil)
	}
	for what, groups := range map[string]int{"client": 21, "service": 3, "backend": 1} {
		by, err := groupBy(what)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := groupFlows(flows, by)
		if err != nil || len(rows) != groups {
			t.Fatalf("%s: %d groups, %v", what, len(rows), err)
		}
		var sum uint64
		for _, row := range rows {
			sum += row.Connections
			if row.New+row.Answered+row.Open+row.Closing+row.Closed+row.Reset+row.Expired != row.Connections {
				t.Errorf("%s: states of %+v do not add up", what, row)
			}
		}
		if sum != 21 {
			t.Errorf("%s: %d connections", what, sum)
		}
		if what != "service" {
			continue
		}
		var out bytes.Buffer
		show := shown[groupRow]{columns: groupColumns(by, false), output: &command.OutputFlag{Value: command.FormatTable}}
		if err := show.all(&out, 80, rows); err != nil {
			t.Fatal(err)
		}
		golden(t, "flows_by_service_80.txt", out.Bytes())
	}
	if _, err := groupBy("moon"); command.ExitStatus(err) != command.ExitUsage {
		t.Errorf("got %v", err)
	}
}

func TestATableOfFlowsFitsATerminal(t *testing.T) {
	var out bytes.Buffer
	if err := showFlows(t, command.FormatTable).each(&out, 80, flowsOf(7), (*maps.FlowRow).Compare); err != nil {
		t.Fatal(err)
	}
	golden(t, "flows_80.txt", out.Bytes())
}

func TestFlowsThatHaveEndedAreHiddenUnlessAskedFor(t *testing.T) {
	for _, row := range []struct {
		states string
		all    bool
		want   string
	}{
		{"", false, "new answered open closing"},
		{"", true, strings.Join(maps.FlowStates(), " ")},
		{"closed,reset", false, "closed reset"},
		{"open", true, "open"},
	} {
		var f stateFlag
		if row.states != "" {
			if err := f.Set(row.states); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, state := range maps.FlowStates() {
			if f.keeps(state, row.all) {
				got = append(got, state)
			}
		}
		if strings.Join(got, " ") != row.want {
			t.Errorf("--state %q, --all %v: %v", row.states, row.all, got)
		}
	}
	var f stateFlag
	if err := f.Set("opne"); err == nil || err.Error() != `there is no state "opne": did you mean open?` {
		t.Errorf("got %v", err)
	}
}

// counted is a flow whose age and bytes are known.
func counted(i int) maps.FlowRow {
	row, age, sent, received := flowOf(i), int64(i*i*50), uint64(i)*1500, uint64(i*i)*1_000_000
	row.AgeSeconds, row.BytesSent, row.BytesReceived = &age, &sent, &received
	return row
}

func countedFlows(count int) iter.Seq2[maps.FlowRow, error] {
	return func(yield func(maps.FlowRow, error) bool) {
		for i := range count {
			if !yield(counted(i), nil) {
				return
			}
		}
	}
}

func TestFlowsShowTheirAgeAndBytesWhereTheseAreAskedFor(t *testing.T) {
	by, err := groupBy("client")
	if err != nil {
		t.Fatal(err)
	}
	groups, err := groupFlows(countedFlows(7), by)
	if err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{80, 160} {
		var flows, grouped bytes.Buffer
		if err := showFlows(t, command.FormatTable).each(&flows, width, countedFlows(7), (*maps.FlowRow).Compare); err != nil {
			t.Fatal(err)
		}
		goldenOf(t, fmt.Sprintf("flows_bytes_%d.txt", width), width, flows.Bytes())
		show := shown[groupRow]{columns: groupColumns(by, true), output: &command.OutputFlag{Value: command.FormatTable}}
		if err := show.all(&grouped, width, groups); err != nil {
			t.Fatal(err)
		}
		goldenOf(t, fmt.Sprintf("flows_bytes_by_client_%d.txt", width), width, grouped.Bytes())
	}
}

// Whoever asks for bytes and for all columns gets both.
func TestAWideTableOfFlowsHasTheirBytes(t *testing.T) {
	var flows, grouped bytes.Buffer
	if err := showFlows(t, command.FormatWide).each(&flows, 0, countedFlows(2), (*maps.FlowRow).Compare); err != nil {
		t.Fatal(err)
	}
	by, err := groupBy("client")
	if err != nil {
		t.Fatal(err)
	}
	groups, err := groupFlows(countedFlows(2), by)
	if err != nil {
		t.Fatal(err)
	}
	show := shown[groupRow]{columns: groupColumns(by, true), output: &command.OutputFlag{Value: command.FormatWide}}
	if err := show.all(&grouped, 0, groups); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{flows.String(), grouped.String()} {
		if !strings.Contains(out, "SENT") || !strings.Contains(out, "RECEIVED") || strings.Contains(out, "ENDED") {
			t.Error(out)
		}
	}
}

// A group has the age of its oldest flow, and the bytes of those that were counted. JSON has neither where nobody asked.
func TestBytesOfAGroupAreThoseOfItsFlows(t *testing.T) {
	by, err := groupBy("backend")
	if err != nil {
		t.Fatal(err)
	}
	flows := func(yield func(maps.FlowRow, error) bool) {
		_ = yield(counted(2), nil) && yield(flowOf(3), nil) && yield(counted(4), nil)
	}
	rows, err := groupFlows(flows, by)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	if r := rows[0]; *r.AgeSeconds != 800 || *r.BytesSent != 9000 || *r.BytesReceived != 20_000_000 {
		t.Errorf("%d seconds, %d and %d bytes", *r.AgeSeconds, *r.BytesSent, *r.BytesReceived)
	}
	text, err := json.Marshal([]any{flowOf(0), counted(1)})
	if err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]int{`"ageSeconds":50`: 1, `"bytesSent":1500`: 1, `"bytesReceived":1000000`: 1, "ageSeconds": 1, "bytesSent": 1} {
		if n := strings.Count(string(text), word); n != want {
			t.Errorf("%s is there %d times, want %d: %s", word, n, want, text)
		}
	}
}
