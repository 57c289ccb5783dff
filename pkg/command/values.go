// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// plainly says what a flag of one of Go's own kinds wants, in place of how Go's parsers put it. Flags that have a type of their own have said it.
func plainly(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	want := wanted(invalid.GetFlag().Value.Type())
	if want == "" {
		return err
	}
	text := err.Error()
	return errors.New(strings.TrimSuffix(text, fmt.Sprint(invalid.Unwrap())) + want)
}

func wanted(kind string) string {
	switch kind {
	case "bool":
		return "want true or false"
	case "duration":
		return "want a time, as 500ms, 30s or 1m30s"
	case "int", "int32", "int64":
		return "want a whole number"
	case "uint16":
		return "want a whole number from 0 to 65535"
	case "uint32", "uint64":
		return "want a whole number, 0 or more"
	case "intSlice":
		return "want whole numbers, separated by commas"
	}
	return ""
}
