// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// table is docs/conformance.md.
type table struct {
	Date, Version string // of nearlb
	Focus, Skip   string // what was chosen

	rows map[string]*row
	all  int // tests of sig-network that there are
}

// row is one test.
type row struct {
	of  map[string]outcome // by proxy
	why string             // of what did not pass, the first
}

// outcome is how often a test passed of how often it ran.
type outcome struct{ passed, failed, skipped int }

func (o outcome) String() string {
	switch ran := o.passed + o.failed; {
	case ran == 0 && o.skipped == 0:
		return "-"
	case ran == 0:
		return "does not run"
	case o.failed == 0:
		return "passed"
	case o.passed == 0:
		return "**failed**"
	default:
		return fmt.Sprintf("**passed %d of %d**", o.passed, ran)
	}
}

// add takes the tests of one run.
func (t *table) add(proxy string, specs []types.SpecReport) {
	t.all = 0
	for _, spec := range specs {
		name := spec.FullText()
		if !strings.HasPrefix(name, sig) {
			continue
		}
		t.all++
		if !chosen(spec) {
			continue
		}
		r := t.row(strings.ReplaceAll(strings.TrimPrefix(name, sig), "|", "/"))
		o := r.of[proxy]
		switch {
		case spec.State.Is(types.SpecStatePassed):
			o.passed++
		case spec.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			o.skipped++
		default:
			o.failed++
		}
		r.of[proxy] = o
		if r.why == "" && !spec.State.Is(types.SpecStatePassed) {
			r.why = reason(spec)
		}
	}
}

// columns are the cells of a row of the table.
var columns = []string{"test", "kube-proxy", "nearlb", "why not"}

// keep takes the column of a proxy that did not run now from the table of before, as long as that is of the same tests.
func (t *table) keep(proxy, file string) error {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !strings.Contains(string(text), "\n"+kubernetes()+"'s test program") {
		return err
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != len(columns) {
			continue
		}
		o, ran := parseOutcome(strings.TrimSpace(cells[slices.Index(columns, proxy)]))
		if !ran {
			continue
		}
		r := t.row(strings.TrimSpace(cells[0]))
		r.of[proxy] = o
		if r.why == "" && o.passed == 0 {
			r.why = strings.TrimSpace(cells[len(cells)-1])
		}
	}
	return nil
}

// parseOutcome reads what String writes, once in the place of each number of times.
func parseOutcome(cell string) (o outcome, ran bool) {
	var times int
	switch _, err := fmt.Sscanf(cell, "**passed %d of %d**", &o.passed, &times); {
	case err == nil:
		return outcome{passed: o.passed, failed: times - o.passed}, true
	case cell == "does not run":
		return outcome{skipped: 1}, true
	case cell == "passed":
		return outcome{passed: 1}, true
	case cell == "**failed**":
		return outcome{failed: 1}, true
	}
	return outcome{}, false
}

// row is that of a test.
func (t *table) row(name string) *row {
	if t.rows == nil {
		t.rows = map[string]*row{}
	}
	if t.rows[name] == nil {
		t.rows[name] = &row{of: map[string]outcome{}}
	}
	return t.rows[name]
}

// sig is what the tests' names begin with.
const sig = "[sig-network] "

// chosen tells whether a test was to run: others are skipped without a word.
func chosen(spec types.SpecReport) bool {
	return !spec.State.Is(types.SpecStateSkipped) || spec.Failure.Message != ""
}

var (
	// changing are parts of messages that are others each time: addresses, numbers, and names that were made up.
	changing = regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}\b|\bfd[0-9a-f:]{4,}|0x[0-9a-f]+|\b\d+(\.\d+)?m?s\b|<[^>]*>`)
	blanks   = regexp.MustCompile(`\s+`)
)

// reason is what a test says, as a cell of the table.
func reason(spec types.SpecReport) string {
	line := blanks.ReplaceAllString(changing.ReplaceAllString(spec.Failure.Message, "..."), " ")
	line = strings.TrimSpace(strings.ReplaceAll(line, "|", "/"))
	const most = 160
	if letters := []rune(line); len(letters) > most {
		line = string(letters[:most]) + " ..."
	}
	return line
}

// known are parts of messages that do not say what may be behind them: a test's own fault.
var known = map[string]string{
	"boom-server pod received a RST": "may be the test's own: its server tells clients by their address alone, and if a FIN comes between the SYN and the ACK of the client's " +
		"next connection, it sends its wrong packet to the port that is closed by then",
}

// explain is the last cell of a row.
func (r *row) explain() string {
	for part, what := range known {
		if strings.Contains(r.why, part) {
			return what + ": " + r.why
		}
	}
	return r.why
}

// worse are the tests that always pass with kube-proxy, and not with nearlb: none as long as it has not run.
func (t *table) worse() (names []string) {
	if t.countOf("nearlb", func(o outcome) bool { return o != outcome{} }) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(t.rows)) {
		reference, ours := t.rows[name].of["kube-proxy"], t.rows[name].of["nearlb"]
		if reference.passed > 0 && reference.failed == 0 && (ours.passed == 0 || ours.failed > 0) {
			names = append(names, name)
		}
	}
	return names
}

func (t *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<!-- made by make e2e -->
# Kubernetes' own network tests

%s's test program, unmodified, on three nodes with kubelet and containerd, each in a zone of its own, dual stack, pods connected by the CNI plugins ptp and
host-local: %swith nearlb in kube-proxy's place, installed as docs/install.md says. %s, nearlb %s.

Of the %d tests of sig-network, %s. Images are made from Kubernetes' sources; in the place of nginx, which nobody
asks there, is a server of agnhost.

| | kube-proxy | nearlb |
|---|---:|---:|
`, kubernetes(), t.reference(), t.Date, t.Version, t.all, t.choice())
	for _, what := range []struct {
		name string
		is   func(outcome) bool
	}{
		{"passed", func(o outcome) bool { return o.passed > 0 && o.failed == 0 }},
		{"failed, once at least", func(o outcome) bool { return o.failed > 0 }},
		{"do not run here", func(o outcome) bool { return o.passed+o.failed == 0 && o.skipped > 0 }},
	} {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", what.name, t.countOf("kube-proxy", what.is), t.countOf("nearlb", what.is))
	}
	b.WriteString("\nLeft out by label: ")
	for i, l := range left {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s, which %s", l.name, l.why)
	}
	fmt.Fprintf(&b, ".\n\n| %s |\n|---|---|---|---|\n", strings.Join(columns, " | "))
	for _, name := range slices.Sorted(maps.Keys(t.rows)) {
		r := t.rows[name]
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, r.of["kube-proxy"], r.of["nearlb"], r.explain())
	}
	return b.String()
}

// reference says what nearlb is compared with.
func (t *table) reference() string {
	if t.countOf("kube-proxy", func(o outcome) bool { return o != outcome{} }) == 0 {
		return "not yet with kube-proxy, "
	}
	return "first with kube-proxy (mode nftables), then "
}

// choice says which tests the table has.
func (t *table) choice() string {
	text := fmt.Sprintf("these are %d", len(t.rows))
	if t.Focus != "" {
		text += ": those whose names match `" + code(t.Focus) + "`"
	}
	if t.Skip != "" {
		text += ", but for those that match `" + code(t.Skip) + "`"
	}
	return text
}

func code(text string) string { return strings.ReplaceAll(text, "`", "") }

func (t *table) countOf(proxy string, is func(outcome) bool) (n int) {
	for _, r := range t.rows {
		if is(r.of[proxy]) {
			n++
		}
	}
	return n
}

// kubernetes is the version of the tests.
func kubernetes() string {
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == "k8s.io/kubernetes" {
			return "Kubernetes " + m.Version
		}
	}
	return "Kubernetes"
}

// count says what became of a run.
func count(specs []types.SpecReport) string {
	passed, skipped := 0, 0
	var failed []string
	for _, spec := range specs {
		switch {
		case !chosen(spec):
		case spec.State.Is(types.SpecStatePassed):
			passed++
		case spec.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			skipped++
		default:
			failed = append(failed, "\n  "+spec.FullText()+"\n    "+reason(spec))
		}
	}
	return fmt.Sprintf("%d passed, %d do not run here, %d failed%s", passed, skipped, len(failed), strings.Join(failed, ""))
}
