// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"
)

// unknownWord says which words there are, and the one that was meant where it is clear.
func unknownWord(what, word string, all []string) error {
	if near := lb.Nearest(word, all); near != "" {
		return fmt.Errorf("there is no %s %q: did you mean %s?", what, word, near)
	}
	return fmt.Errorf("there is no %s %q: want one of %s", what, word, strings.Join(all, ", "))
}

// verdictText says in words what a verdict says in one (as bpf.Verdict.Spelled).
func verdictText(name string) string { return explain.Text(explain.Verdict, name, "", "", "") }
