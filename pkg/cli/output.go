// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Output formats of -o.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatJSONL = "jsonl"
	formatYAML  = "yaml"
	formatName  = "name"

	formatMarkdown = "markdown"
	formatJSONPath = "jsonpath=TEMPLATE"
)

// outputFlag is -o: one of a command's formats, checked as it is set.
type outputFlag struct {
	value   string
	allowed []string
	path    *jsonPath // of jsonpath=TEMPLATE
}

func addOutputFlag(cmd *cobra.Command, allowed ...string) *outputFlag {
	flag := &outputFlag{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(flag, "output", "o", "output `format`: "+strings.Join(allowed, ", "))
	complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return allowed, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc("output", complete); err != nil {
		panic(err) // a program error: the flag was added one line above
	}
	return flag
}

func (f *outputFlag) String() string { return f.value }
func (f *outputFlag) Type() string   { return "format" }

// Set refuses formats that the command does not have.
func (f *outputFlag) Set(value string) (err error) {
	f.path = nil
	if template, is := strings.CutPrefix(value, "jsonpath="); is && slices.Contains(f.allowed, formatJSONPath) {
		f.value = formatJSONPath
		f.path, err = parseJSONPath(template)
		return err
	}
	if !slices.Contains(f.allowed, value) {
		return fmt.Errorf("want %s", strings.Join(f.allowed, ", "))
	}
	f.value = value
	return nil
}

// othersHave tells of a format that this command has not, and others have.
func (f *outputFlag) othersHave(value string) bool {
	if strings.HasPrefix(value, "jsonpath=") {
		value = formatJSONPath
	}
	all := []string{formatTable, formatWide, formatJSON, formatJSONL, formatYAML, formatName, formatJSONPath, formatMarkdown}
	return slices.Contains(all, value) && !slices.Contains(f.allowed, value)
}

// writeJSON writes one document, indented, without HTML escapes.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// writeJSONLine writes one object on one line.
func writeJSONLine(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// writeYAML goes by the JSON tags: the same names in both.
func writeYAML(w io.Writer, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = w.Write(text)
	return err
}

// writeRows writes rows in any format of the read commands; width as in writeTable.
func writeRows[R any](w io.Writer, width int, format string, columns []column[R], rows []R) error {
	if rows == nil {
		rows = []R{} // an empty list, not null
	}
	switch format {
	case formatJSON:
		return writeJSON(w, rows)
	case formatYAML:
		return writeYAML(w, rows)
	case formatJSONL:
		for i := range rows {
			if err := writeJSONLine(w, &rows[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return writeTable(w, width, format == formatWide, columns, rows)
}

// orNothing leaves out what does not apply.
func orNothing(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
