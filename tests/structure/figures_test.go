// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	whyBegins = "<!-- why: the figures are those of docs/performance.md: NEARLB_UPDATE=1 go test ./tests/structure writes them -->\n"
	whyEnds   = "<!-- /why -->"
)

// README says why by figures that make scale and make bench measured: those of the last run, which docs/performance.md has.
// NEARLB_UPDATE=1 writes them.
func TestREADMEsFiguresAreThoseOfTheMeasurements(t *testing.T) {
	all := pages(t)
	want, err := why(all["docs/performance.md"])
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(all["README.md"], whyBegins)
	have, after, ends := strings.Cut(rest, whyEnds)
	if !begins || !ends {
		t.Fatal("README has no table between its marks")
	}
	if os.Getenv("NEARLB_UPDATE") != "" {
		if err := os.WriteFile(filepath.Join(root(t), "README.md"), []byte(before+whyBegins+want+whyEnds+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if have != want {
		t.Errorf("README has\n%s\nthe measurements are\n%s\nNEARLB_UPDATE=1 go test ./tests/structure writes them", have, want)
	}
}

// why makes README's table of docs/performance.md.
func why(performance string) (string, error) {
	var out strings.Builder
	out.WriteString("| | kube-proxy (nftables) | nearlb |\n|---|---:|---:|\n")
	for _, row := range []struct{ says, of string }{
		{"one of 100,000 endpoints changes: new connections obey after (median)", "one endpoint changes"},
		{"an agent restarts on a node of 10,000 Services: all is published after", "start over what it left"},
		{"memory of the agent at 10,000 Services", "memory of its own"},
	} {
		cells, err := tableRow(performance, row.of, 7)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", row.says, first(cells[3]), first(cells[4])) // of 10,000 Services with 10 endpoints each
	}
	cells, err := tableRow(performance, "from_pod established | 100,000", 6)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&out, "| the datapath's share of a packet of a known connection, one of 100,000 | - | %s ns |\n", first(cells[2]))
	out.WriteString("| agent killed under load: connections lost | - | none (`TestAnAgentKilledUnderLoadLosesNoConnection`) |\n")
	return out.String(), nil
}

// tableRow gives the cells of the row that begins so.
func tableRow(page, begin string, cells int) ([]string, error) {
	line := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(begin) + `.*\|$`).FindString(page)
	all := strings.Split(strings.Trim(line, "| "), " | ")
	if len(all) != cells {
		return nil, fmt.Errorf("docs/performance.md: row %q has %d cells, want %d", begin, len(all), cells)
	}
	return all, nil
}

// first is the first figure of a cell, with its unit.
func first(cell string) string {
	figure, _, _ := strings.Cut(cell, " / ")
	figure, _, _ = strings.Cut(figure, " (")
	return strings.TrimSpace(figure)
}
