// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/table"
)

// nodeField is what names the node in each object. Rows of nearlb have "node" as well, which is the backend's for some.
const nodeField = "onNode"

// onNode adds the node to an object's text, as its first field, unless it is there.
func onNode(object []byte, node string) ([]byte, error) {
	name, err := json.Marshal(node)
	if err != nil {
		return nil, err
	}
	object = bytes.TrimSpace(object)
	if !json.Valid(object) || object[0] != '{' {
		return nil, fmt.Errorf("node %s answers something that is no JSON object", node)
	}
	rest := bytes.TrimSpace(object[1:])
	if bytes.HasPrefix(rest, []byte(`"`+nodeField+`"`)) {
		return object, nil // it says so itself
	}
	head := fmt.Appendf(nil, `{"%s":%s`, nodeField, name)
	if rest[0] != '}' {
		head = append(head, ',')
	}
	return append(head, rest...), nil
}

// lineWriter passes whole lines on, each changed by line; of one node.
type lineWriter struct {
	of   *asked
	line func([]byte) []byte
	rest []byte
}

// longestLine bounds what is kept of a line that does not end.
const longestLine = 16 << 20

// Write is io.Writer's.
func (w *lineWriter) Write(text []byte) (int, error) {
	w.rest = append(w.rest, text...)
	if len(w.rest) > longestLine {
		return 0, fmt.Errorf("a line is longer than %d bytes", longestLine)
	}
	for {
		end := bytes.IndexByte(w.rest, '\n')
		if end < 0 {
			return len(text), nil
		}
		if err := w.pass(w.rest[:end]); err != nil {
			return 0, err
		}
		w.rest = w.rest[end+1:]
	}
}

func (w *lineWriter) pass(line []byte) error {
	line = w.line(line)
	if line == nil {
		return nil
	}
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	_, err := w.of.out.Write(append(line, '\n'))
	return err
}

// end passes on what came after the last end of a line.
func (w *lineWriter) end() {
	if len(w.rest) > 0 {
		_ = w.pass(w.rest) // who reads went away
	}
	w.rest = nil
}

// lines passes on objects of one line, with their node. What is cut off is left out: the error of its node tells.
func (a *asked) lines(node string) io.Writer {
	return &lineWriter{of: a, line: func(line []byte) []byte {
		object, err := onNode(line, node)
		if err != nil {
			return nil
		}
		return object
	}}
}

// prefixed passes on lines of text behind their node's name, within a terminal's width.
func (a *asked) prefixed(agents []agent) func(node string) io.Writer {
	longest := 0
	for _, agent := range agents {
		longest = max(longest, utf8.RuneCountInString(printable(agent.node)))
	}
	width := table.TerminalWidth(a.out)
	return func(node string) io.Writer {
		return &lineWriter{of: a, line: func(line []byte) []byte { return behindName(node, longest, line, width) }}
	}
}

// behindName is a line behind a name that has the room of the longest one; 0: the line may have any width.
func behindName(name string, longest int, line []byte, width int) []byte {
	return []byte(strings.Join(table.Fold(fmt.Sprintf("%-*s  %s", longest, printable(name), printable(string(line))), width), "\n"))
}

// documents prints all nodes' objects as one list, or one a line. Rows are asked for as lines.
func (a *asked) documents(ctx context.Context, agents []agent, command func(string) []string, rows bool) ([]*answer, error) {
	format := "json"
	if rows {
		format = "jsonl"
	}
	answers := a.ask(ctx, agents, command(format), nil)
	all := []json.RawMessage{}
	for _, answer := range answers {
		for object := range objects(answer, rows) {
			text, err := onNode(object, answer.node)
			if err != nil {
				if answer.err == nil {
					answer.err = err
				}
				break
			}
			all = append(all, text)
		}
	}
	return answers, a.print(all)
}

// objects are the answer's lines, the elements of its list, or all of it.
func objects(answer *answer, rows bool) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		if answer.out.Len() == 0 {
			return
		}
		if !rows {
			var list []json.RawMessage
			if json.Unmarshal(answer.out.Bytes(), &list) != nil {
				list = []json.RawMessage{answer.out.Bytes()}
			}
			for _, object := range list {
				if !yield(object) {
					return
				}
			}
			return
		}
		for line := range bytes.Lines(answer.out.Bytes()) {
			if len(bytes.TrimSpace(line)) > 0 && !yield(line) {
				return
			}
		}
	}
}

func (a *asked) print(all []json.RawMessage) error {
	if a.output == "jsonl" {
		for _, object := range all {
			var line bytes.Buffer
			if err := json.Compact(&line, object); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(a.out, line.String()); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if a.output == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = a.out.Write(text)
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s\n", text)
	return err
}

// cells are what stands between two spaces or more: nearlb's tables have those between columns, and - in empty cells.
var cells = regexp.MustCompile(` {2,}`)

// headed asks for headings, whoever is to see them: cells go by them.
func headed(command []string) []string {
	return slices.DeleteFunc(slices.Clone(command), func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return name == "--no-headers"
	})
}

// writeTables makes one table of all nodes', with a column for the node; bare: without headings. A node has the columns that its rows need:
// cells go by their heading, and are - where a node has none. What is no row (a sentence that there are none) goes behind the table.
func writeTables(w io.Writer, answers []*answer, bare bool) error {
	columns := []string{"ON NODE"}
	var rows []map[string]string
	var sentences []string
	for _, answer := range answers {
		var headings []string
		for line := range strings.Lines(answer.out.String()) {
			row := cells.Split(strings.TrimSpace(line), -1)
			switch {
			case len(row) < 2:
				sentences = append(sentences, answer.node+": "+strings.TrimSpace(line))
			case headings == nil:
				headings = row
				columns = merged(columns, headings)
			default:
				rows = append(rows, byHeading(headings, row, answer.node))
			}
		}
	}
	var all [][]string
	if !bare && len(columns) > 1 {
		all = append(all, columns)
	}
	for _, row := range rows {
		line := make([]string, len(columns))
		for i, column := range columns {
			line[i] = or(row[column], "-")
		}
		all = append(all, line)
	}
	writeAligned(w, !bare && len(columns) > 1, all)
	for _, text := range sentences {
		if err := writeFolded(w, text); err != nil {
			return err
		}
	}
	return nil
}

// writeFolded writes a line, or several within a terminal's width.
func writeFolded(w io.Writer, line string) error {
	for _, part := range table.Fold(printable(line), table.TerminalWidth(w)) {
		if _, err := fmt.Fprintln(w, part); err != nil {
			return err
		}
	}
	return nil
}

// merged adds the headings that are not among the columns, each behind the one that it follows.
func merged(columns, headings []string) []string {
	at := 0
	for _, heading := range headings {
		if i := slices.Index(columns, heading); i >= 0 {
			at = i
			continue
		}
		at++
		columns = slices.Insert(columns, at, heading)
	}
	return columns
}

// byHeading names the cells of a node's row. What is more than there are headings belongs to the last, whose text has no bound.
func byHeading(headings, row []string, node string) map[string]string {
	named := map[string]string{"ON NODE": node}
	if more := len(row) - len(headings); more > 0 {
		row = append(slices.Clone(row[:len(headings)-1]), strings.Join(row[len(headings)-1:], "  "))
	}
	for i, cell := range row {
		named[headings[i]] = cell
	}
	return named
}

// writeAligned writes cells in columns, within a terminal's width, numbers aligned at their ends. headed: the first row are headings.
func writeAligned(w io.Writer, headed bool, cells [][]string) {
	if len(cells) == 0 {
		return
	}
	numbers := make([]bool, len(cells[0]))
	rows := cells
	if headed {
		rows = cells[1:]
	}
	for i := range numbers {
		numbers[i] = len(rows) > 0 && !slices.ContainsFunc(rows, func(row []string) bool { return !number.MatchString(row[i]) })
	}
	for _, row := range cells {
		for i := range row {
			row[i] = printable(row[i])
		}
	}
	_ = table.Write(w, table.TerminalWidth(w), true, cells, numbers) // who reads went away
}

// number is a cell as nearlb writes numbers, with their units.
var number = regexp.MustCompile(`^(-|[0-9]+(\.[0-9]+)?( ?[a-zA-Zµ%]{1,3})?)$`)

// printable escapes what would move a terminal's cursor.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != ' ' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
