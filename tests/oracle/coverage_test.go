// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
)

// missing are the forms of answers that no world gave yet: worlds that are all alike prove nothing.
type missing map[string]*regexp.Regexp

// allForms are what an answer may look like, whatever the names and numbers in it.
func allForms() missing {
	out := missing{
		"affinity":       regexp.MustCompile(`affinity [1-9]`),
		"source ranges":  regexp.MustCompile(`ranges \[.+\]`),
		"healthy":        regexp.MustCompile(`^port \d+: [1-9]`),
		"unhealthy":      regexp.MustCompile(`^port \d+: 0`),
		"many endpoints": regexp.MustCompile(`elsewhere balance \S+ \S+ \S+ \S+;`),
		"short circuit":  regexp.MustCompile(`here balance .*elsewhere drop`),
		"local only":     regexp.MustCompile(`^0 .*here drop`),
	}
	for kind := clusterIP; kind <= nodePort; kind++ {
		for _, action := range []string{"balance", "reject", "drop"} {
			out[fmt.Sprintf("kind %d %s", kind, action)] = regexp.MustCompile(fmt.Sprintf("^%d .*elsewhere %s", kind, action))
		}
	}
	return out
}

func (m missing) note(a answers) {
	for form, pattern := range m {
		for _, line := range a {
			if pattern.MatchString(line) {
				delete(m, form)
				break
			}
		}
	}
}

func (m missing) check(t *testing.T) {
	if len(m) > 0 {
		t.Errorf("no world had an answer of the forms %q", slices.Sorted(maps.Keys(m)))
	}
}
