// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// README's table of features names the test of each row: it has to exist.
func TestEveryTestThatREADMENamesExists(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	have := testsOfTheTree(t)
	named := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1)
	for _, match := range named {
		if !have[match[1]] {
			t.Errorf("README names %s, which is no test", match[1])
		}
	}
	if len(named) == 0 {
		t.Error("README names no test")
	}
}

func testsOfTheTree(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	have := map[string]bool{}
	for _, text := range filesOf(t, ".", func(path string) bool { return strings.HasSuffix(path, "_test.go") }) {
		for _, match := range function.FindAllSubmatch(text, -1) {
			have[string(match[1])] = true
		}
	}
	return have
}
