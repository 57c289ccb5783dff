// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// JSONPath is the template of -o jsonpath=TEMPLATE, as kubectl's. A list of rows is .items, as that of kubectl's objects is.
type JSONPath struct{ template *jsonpath.JSONPath }

// ParseJSONPath reads a template; its braces may be left out around a single path.
func ParseJSONPath(text string) (*JSONPath, error) {
	if text == "" {
		return nil, fmt.Errorf("jsonpath: want a template, as jsonpath='{.items[*].service}'")
	}
	if !strings.Contains(text, "{") {
		text = "{" + text + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(text); err != nil {
		return nil, fmt.Errorf("jsonpath: %w", err)
	}
	return &JSONPath{path}, nil
}

// Write fills in the template with what -o json prints.
func (p *JSONPath) Write(w io.Writer, rows any) error {
	text, err := json.Marshal(map[string]any{"items": rows})
	if err != nil {
		return err
	}
	var document any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return err
	}
	if err := p.template.Execute(w, numbered(document)); err != nil {
		return Usagef("-o jsonpath: %w: rows are .items, as in {.items[*].service}", err)
	}
	return nil
}

// numbered has whole numbers where JSON has them: templates print and compare them as such.
func numbered(value any) any {
	switch v := value.(type) {
	case json.Number:
		if whole, err := v.Int64(); err == nil {
			return whole
		}
		part, _ := v.Float64() // it is a number
		return part
	case []any:
		for i := range v {
			v[i] = numbered(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = numbered(v[key])
		}
	}
	return value
}
