// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/maps"
)

func TestRowsAreSortedByTheFieldsOfTheirJSON(t *testing.T) {
	rows := []maps.BackendRow{{Service: "b", Connections: 10, Generation: 1}, {Service: "a", Connections: 9, Generation: 2}, {Service: "c", Connections: 9, Generation: 3}}
	for field, want := range map[string]string{"": "bac", "service": "abc", "-service": "cba", ".service": "abc", "{.service}": "abc", "connections": "acb", "-connections": "bac", "-generation": "cab"} {
		order := sortFlag{text: field}
		if err := order.of(maps.BackendRow{}); err != nil {
			t.Fatal(err)
		}
		some := append([]maps.BackendRow{}, rows...)
		sortRows(some, &order)
		var got strings.Builder
		for _, r := range some {
			got.WriteString(r.Service)
		}
		if got.String() != want {
			t.Errorf("by %q: %s, want %s", field, &got, want)
		}
	}
	for field, want := range map[string]string{"conections": "did you mean connections?", "moon": "there is no field", "lists": "there is no field"} {
		order := sortFlag{text: field}
		if err := order.of(maps.BackendRow{}); command.ExitStatus(err) != command.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("by %q: %v", field, err)
		}
	}
	rate := func(r float64) maps.BackendRates { return maps.BackendRates{NewPerSecond: &r} }
	watched := []maps.BackendRow{{Service: "none"}, {Service: "slow", BackendRates: rate(2)}, {Service: "fast", BackendRates: rate(10)}}
	fastest := sortFlag{text: "-newPerSecond"}
	if err := fastest.of(maps.BackendRow{}); err != nil {
		t.Fatal(err)
	}
	if sortRows(watched, &fastest); watched[0].Service != "fast" || watched[2].Service != "none" {
		t.Errorf("by a rate: %+v", watched)
	}
	nested := sortFlag{text: "internal.reason"}
	frontends := []maps.FrontendRow{{Internal: maps.SideRow{Reason: "same-zone"}}, {Internal: maps.SideRow{Reason: "all"}}}
	if err := nested.of(maps.FrontendRow{}); err != nil {
		t.Fatal(err)
	}
	if sortRows(frontends, &nested); frontends[0].Internal.Reason != "all" {
		t.Errorf("by a field of a field: %+v", frontends)
	}
}

func TestJSONPathIsFilledInAsKubectlDoes(t *testing.T) {
	rows := []maps.BackendRow{{Service: "a", Connections: 12345678}, {Service: "b"}}
	for template, want := range map[string]string{
		"{.items[*].service}":                    "a b",
		".items[0].connections":                  "12345678",
		`{range .items[*]}{.service}{"\n"}{end}`: "a\nb\n",
		`{.items[?(@.service=="b")].service}`:    "b",
		`{.items[0].nothing}`:                    "",
	} {
		path, err := command.ParseJSONPath(template)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := path.Write(&out, rows); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", template, &out, err)
		}
	}
	for _, template := range []string{"", "{.items[}", "{"} {
		output := command.OutputFlag{Allowed: []string{command.FormatJSONPath}}
		if err := output.Set("jsonpath=" + template); err == nil {
			t.Errorf("%q is taken", template)
		}
	}
}

func TestCommandsThatReadTakeTheirPlacesFromTheEnvironment(t *testing.T) {
	for _, name := range []string{"services", "status", "zones", "why"} {
		t.Setenv("NEARLB_PIN_PATH", "/nowhere/"+name)
		t.Setenv("NEARLB_OUTPUT", "json")
		t.Setenv("NEARLB_ZONE", "a")
		t.Setenv("NEARLB_NODE", "n9")
		args := map[string][]string{"why": {"10.0.0.1", "web"}}[name]
		var out, errs bytes.Buffer
		status := run(t.Context(), append([]string{name}, args...), strings.NewReader(""), &out, &errs)
		if status != command.ExitFailed || !strings.Contains(errs.String(), "/nowhere/"+name) {
			t.Errorf("%s: %d, %s", name, status, &errs)
		}
	}
	t.Setenv("NEARLB_OUTPUT", "tea")
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"services"}, strings.NewReader(""), &out, &errs); status != command.ExitUsage || !strings.Contains(errs.String(), `environment NEARLB_OUTPUT="tea"`) {
		t.Errorf("%d, %s", status, &errs)
	}
}

// One format stands in the environment for all commands: those that have it not keep theirs.
func TestAFormatThatOthersHaveIsNoBadUsage(t *testing.T) {
	for _, format := range []string{"table", "wide", "json", "jsonl", "yaml", "name", "jsonpath={.items}", "tea"} {
		t.Setenv("NEARLB_OUTPUT", format)
		for _, cmd := range commands() {
			if flag := cmd.Flags().Lookup("output"); flag == nil || cmd.GroupID != groupRead && cmd.GroupID != groupExplain {
				continue
			}
			if err := cmd.PreRunE(cmd, nil); (err != nil) != (format == "tea") {
				t.Errorf("NEARLB_OUTPUT=%s nearlb %s: %v", format, cmd.Name(), err)
			}
		}
	}
}

func TestReadmitTakesItsPlacesFromTheEnvironment(t *testing.T) {
	t.Setenv("NEARLB_LOCK_DIR", "/nowhere/lock")
	cmd, _, err := Root().Find([]string{"backends", "readmit"})
	if err != nil || cmd.Name() != "readmit" {
		t.Fatal(cmd.Name(), err)
	}
	if err := cmd.PreRunE(cmd, nil); err != nil || cmd.Flags().Lookup("lock-dir").Value.String() != "/nowhere/lock" {
		t.Errorf("%v, --lock-dir %s", err, cmd.Flags().Lookup("lock-dir").Value)
	}
}

func TestWhatIsExplainedEndsOnce(t *testing.T) {
	for _, word := range explain.Words() {
		var out bytes.Buffer
		if status := run(t.Context(), []string{"explain", word.Word}, strings.NewReader(""), &out, &out); status != command.ExitDone || strings.Contains(out.String(), "?.") {
			t.Errorf("%s: %d, %s", word.Word, status, &out)
		}
	}
}

func TestTheVersionSaysItsLayout(t *testing.T) {
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"version", "-o", "json"}, strings.NewReader(""), &out, &errs); status != command.ExitDone {
		t.Fatalf("%d, %s", status, &errs)
	}
	for _, field := range []string{"version", "commit", "modified", "layout", "go", "platform"} {
		if !strings.Contains(out.String(), fmt.Sprintf("%q: ", field)) {
			t.Errorf("no %s in %s", field, &out)
		}
	}
}
