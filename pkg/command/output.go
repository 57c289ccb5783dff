// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/table"
)

// Output formats of -o.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatJSONL = "jsonl"
	FormatYAML  = "yaml"
	FormatName  = "name"

	FormatMarkdown = "markdown"
	FormatJSONPath = "jsonpath=TEMPLATE"
)

// OutputFlag is -o: one of a command's formats, checked as it is set.
type OutputFlag struct {
	Value   string
	Allowed []string
	Path    *JSONPath // of jsonpath=TEMPLATE
}

// AddOutputFlag adds -o to a command: the first of the formats is the one without it.
func AddOutputFlag(cmd *cobra.Command, allowed ...string) *OutputFlag {
	flag := &OutputFlag{Value: allowed[0], Allowed: allowed}
	cmd.Flags().VarP(flag, "output", "o", "output `format`: "+strings.Join(allowed, ", "))
	complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return allowed, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc("output", complete); err != nil {
		panic(err) // a program error: the flag was added one line above
	}
	return flag
}

func (f *OutputFlag) String() string { return f.Value }
func (f *OutputFlag) Type() string   { return "format" }

// Set refuses formats that the command does not have.
func (f *OutputFlag) Set(value string) (err error) {
	f.Path = nil
	if template, is := strings.CutPrefix(value, "jsonpath="); is && slices.Contains(f.Allowed, FormatJSONPath) {
		f.Value = FormatJSONPath
		f.Path, err = ParseJSONPath(template)
		return err
	}
	if !slices.Contains(f.Allowed, value) {
		return fmt.Errorf("want %s", strings.Join(f.Allowed, ", "))
	}
	f.Value = value
	return nil
}

// othersHave tells of a format that this command has not, and others have.
func (f *OutputFlag) othersHave(value string) bool {
	if strings.HasPrefix(value, "jsonpath=") {
		value = FormatJSONPath
	}
	all := []string{FormatTable, FormatWide, FormatJSON, FormatJSONL, FormatYAML, FormatName, FormatJSONPath, FormatMarkdown}
	return slices.Contains(all, value) && !slices.Contains(f.Allowed, value)
}

// WriteJSON writes one document, indented, without HTML escapes.
func WriteJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// WriteJSONLine writes one object on one line.
func WriteJSONLine(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// WriteYAML goes by the JSON tags: the same names in both.
func WriteYAML(w io.Writer, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = w.Write(text)
	return err
}

// WriteRows writes rows in any format of the read commands; width as in table.WriteColumns.
func WriteRows[R any](w io.Writer, width int, format string, columns []table.Column[R], rows []R) error {
	if rows == nil {
		rows = []R{} // an empty list, not null
	}
	switch format {
	case FormatJSON:
		return WriteJSON(w, rows)
	case FormatYAML:
		return WriteYAML(w, rows)
	case FormatJSONL:
		for i := range rows {
			if err := WriteJSONLine(w, &rows[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return table.WriteColumns(w, width, format == FormatWide, columns, rows)
}
