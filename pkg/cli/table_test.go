// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

type animal struct{ name, address, legs string }

func animals() []table.Column[animal] {
	return []table.Column[animal]{
		{Heading: "NAME", Cell: func(a animal) string { return a.name }},
		{Heading: "ADDRESS", Cell: func(a animal) string { return a.address }},
		{Heading: "NOTE", Wide: true, Cell: func(animal) string { return "tame" }},
		{Heading: "LEGS", Right: true, Cell: func(a animal) string { return a.legs }},
	}
}

func tabulated(t *testing.T, width int, wide bool, rows ...animal) string {
	t.Helper()
	var b strings.Builder
	if err := table.WriteColumns(&b, width, wide, animals(), rows); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestATableAlignsItsColumnsAndItsNumbers(t *testing.T) {
	got := tabulated(t, 0, false, animal{"ant", "10.0.0.1", "6"}, animal{"millipede", "", "1000"})
	want := `NAME       ADDRESS   LEGS
ant        10.0.0.1     6
millipede  -         1000
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAWideTableHasMoreColumns(t *testing.T) {
	got := tabulated(t, 0, true, animal{"ant", "10.0.0.1", "6"})
	if want := "NAME  ADDRESS   NOTE  LEGS\nant   10.0.0.1  tame     6\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The long address keeps its place in the column, whole, and the row goes on below; the other rows stay as they are.
func TestOneLongAddressMovesNothingElse(t *testing.T) {
	long := "[fd00:1234:5678:9abc:def0:1234:5678:9abc]:8080"
	got := tabulated(t, 40, false, animal{"ant", "10.0.0.1", "6"}, animal{"bee", long, "6"}, animal{"cow", "10.0.0.2", "4"})
	want := `NAME  ADDRESS                       LEGS
ant   10.0.0.1                         6
bee   [fd00:1234:5678:9abc:def0:1234:5678:9abc]:8080
                                       6
cow   10.0.0.2                         4
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Where most cells are long no column is broken: the terminal wraps the lines.
func TestATableThatCannotFitKeepsItsLines(t *testing.T) {
	long := strings.Repeat("x", 60)
	if got := tabulated(t, 40, false, animal{"ant", long, "6"}, animal{"bee", long, "6"}); strings.Count(got, "\n") != 3 {
		t.Errorf("want three lines, got\n%s", got)
	}
}

func TestWithoutATerminalEachRowIsOneLine(t *testing.T) {
	long := strings.Repeat("x", 300)
	if got := tabulated(t, 0, false, animal{long, long, "4"}, animal{"b", "c", "4"}); strings.Count(got, "\n") != 3 {
		t.Errorf("want three lines, got\n%s", got)
	}
}

func TestATerminalTooNarrowForAnythingStillGetsEverything(t *testing.T) {
	got := tabulated(t, 1, false, animal{"grasshopper", "10.0.0.1", "6"})
	for _, want := range []string{"grasshopper", "10.0.0.1", "6"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

func TestNamesCannotMoveTheCursor(t *testing.T) {
	got := tabulated(t, 0, false, animal{"a\x1b[2J\nb\u202ec\tü", "", "4"})
	if want := `a\x1b[2J\x0ab\u202ec\x09ü`; !strings.Contains(got, want) {
		t.Errorf("want %s in\n%s", want, got)
	}
}

// A frontend that appears has its service port's counters, which came before it.
func TestAFrontendThatAppearsHasGainedNothing(t *testing.T) {
	row := func(service string, frontend uint16, connections uint64) maps.FrontendRow {
		return maps.FrontendRow{Service: service, Protocol: "TCP", FrontendPort: frontend, Connections: connections}
	}
	d := dump[maps.FrontendRow]{
		identity: func(r *maps.FrontendRow) any { return [...]string{r.Service, r.Port, r.Protocol} },
		rates: func(before, now *maps.FrontendRow, seconds float64) {
			now.NewPerSecond = gained(before.Connections, now.Connections, seconds)
		},
	}
	last := differences[maps.FrontendRow]{dump: &d}
	at := time.Unix(1_700_000_000, 0)
	last.follow([]maps.FrontendRow{row("a/web", 80, 1000)}, at)
	rows := []maps.FrontendRow{row("a/web", 80, 1004), row("a/web", 81, 1004), row("a/new", 80, 6)}
	last.follow(rows, at.Add(2*time.Second))
	for i, want := range []float64{2, 2, 3} {
		if got := rows[i].NewPerSecond; got == nil || *got != want {
			t.Errorf("row %d: %v a second, want %v", i, got, want)
		}
	}
}

// What is watched is told a second: counters' differences, once there are two readings; those that fell began anew.
func TestWatchedRowsTellWhatTheyGainedASecond(t *testing.T) {
	d := dump[maps.VerdictRow]{
		identity: func(r *maps.VerdictRow) any { return r.Reason },
		rates: func(before, now *maps.VerdictRow, seconds float64) {
			now.PacketsPerSecond = gained(before.Packets, now.Packets, seconds)
		},
		columns: []table.Column[maps.VerdictRow]{
			{Heading: "REASON", Cell: func(r maps.VerdictRow) string { return r.Reason }},
			{Heading: "PACKETS", When: table.OncePrint, Cell: func(r maps.VerdictRow) string { return count(r.Packets) }},
			{Heading: "PACKETS/S", When: table.EachSecond, Cell: func(r maps.VerdictRow) string { return perSecond(r.PacketsPerSecond, rate) }},
		},
	}
	last := differences[maps.VerdictRow]{dump: &d}
	at := time.Unix(1_700_000_000, 0)
	print := func(rows ...maps.VerdictRow) string {
		at = at.Add(2 * time.Second)
		last.follow(rows, at)
		var out strings.Builder
		show := shown[maps.VerdictRow]{columns: d.at(true).columns, bare: true, output: &command.OutputFlag{Value: command.FormatTable}}
		if err := show.all(&out, 80, rows); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	row := func(reason string, packets uint64) maps.VerdictRow {
		return maps.VerdictRow{Reason: reason, Packets: packets}
	}
	for i, step := range []struct{ got, want string }{
		{print(row("a", 10), row("b", 5)), "a       -\nb       -\n"},
		{print(row("a", 40), row("b", 5), row("c", 2)), "a       15\nb       0\nc       1.0\n"},
		{print(row("a", 8)), "a       4.0\n"},
	} {
		if step.got != step.want {
			t.Errorf("print %d:\n%swant\n%s", i, step.got, step.want)
		}
	}
	var out strings.Builder
	whole := shown[maps.VerdictRow]{columns: d.at(false).columns, output: &command.OutputFlag{Value: command.FormatTable}}
	if err := whole.all(&out, 80, []maps.VerdictRow{row("a", 8)}); err != nil || !strings.HasPrefix(out.String(), "REASON  PACKETS\n") {
		t.Errorf("printed once: %v\n%s", err, out.String())
	}
}

// A service port's counters are told once, at its first frontend; of what is open, each frontend has its own number.
func TestCountersOfAServicePortAreToldOnce(t *testing.T) {
	rows := []maps.FrontendRow{{Service: "prod/web", Port: "http", Connections: 7}, {Service: "prod/web", Port: "http", Connections: 7}, {Service: "prod/web", Port: "https", Connections: 9}}
	markRepeats(rows)
	total := once(func(r maps.FrontendRow) string { return count(r.Connections) })
	var told []string
	for _, r := range rows {
		told = append(told, total(r))
	}
	if want := []string{"7", "", "9"}; !slices.Equal(told, want) {
		t.Errorf("got %q, want %q", told, want)
	}
}

// Where narrower columns are not enough, the last ones of each row have a line of their own.
func TestATableThatIsTooWideHasItsLastColumnsBelow(t *testing.T) {
	columns := []table.Column[int]{}
	for _, heading := range []string{"FIRST", "SECOND", "THIRD"} {
		columns = append(columns, table.Column[int]{Heading: heading, Right: heading == "THIRD", Cell: func(n int) string { return heading + strings.Repeat("x", 10) + strconv.Itoa(n) }})
	}
	var out bytes.Buffer
	if err := table.WriteColumns(&out, 40, false, columns, []int{1, 22, 333}); err != nil {
		t.Fatal(err)
	}
	want := `FIRST               SECOND
                 THIRD
FIRSTxxxxxxxxxx1    SECONDxxxxxxxxxx1
      THIRDxxxxxxxxxx1
FIRSTxxxxxxxxxx22   SECONDxxxxxxxxxx22
     THIRDxxxxxxxxxx22
FIRSTxxxxxxxxxx333  SECONDxxxxxxxxxx333
    THIRDxxxxxxxxxx333
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// Numbers are never broken: where texts alone cannot be narrowed enough the last columns go below.
func TestNumbersKeepTheirColumns(t *testing.T) {
	columns := []table.Column[animal]{
		{Heading: "NAME", Cell: func(a animal) string { return a.name }},
		{Heading: "BYTES", Right: true, Cell: func(a animal) string { return a.legs }},
		{Heading: "MORE", Right: true, Cell: func(a animal) string { return a.address }},
	}
	var out strings.Builder
	if err := table.WriteColumns(&out, 24, false, columns, []animal{{"a-long-name-1", "1", "0 B"}, {"a-long-name-2", "2", "0 B"}, {"a-long-name-3", "3", "999.5 kB"}}); err != nil {
		t.Fatal(err)
	}
	want := `NAME              BYTES
    MORE
a-long-name-1       0 B
       1
a-long-name-2       0 B
       2
a-long-name-3  999.5 kB
       3
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
