// SPDX-License-Identifier: Apache-2.0

package watch

import "strings"

// ObjectError says why an object, or a whole file, is refused. Parts that are unknown are empty.
type ObjectError struct {
	File    string // "" for objects of an API server
	Object  string // "Service default/web"
	Field   string // "spec.ports[0].port"
	Value   string // as written
	Problem string // what the rule is
}

// Error is one line: "file: object: field: value: problem".
func (e *ObjectError) Error() string {
	var parts []string
	for _, part := range []string{e.File, e.Object, e.Field, e.Value, e.Problem} {
		if part != "" {
			parts = append(parts, strings.ReplaceAll(part, "\n", " "))
		}
	}
	return strings.Join(parts, ": ")
}
