// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// What GitHub reads is read there alone: a form that is no YAML shows nowhere.
func TestFormsAndWorkflowsAreReadable(t *testing.T) {
	forms := 0
	for path, text := range filesOf(t, ".github", func(path string) bool { return filepath.Ext(path) == ".yml" }) {
		var document map[string]any
		if err := yaml.UnmarshalStrict(text, &document); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if strings.Contains(path, "ISSUE_TEMPLATE") && document["body"] != nil {
			forms++
			for _, key := range []string{"name", "description"} {
				if document[key] == nil {
					t.Errorf("%s has no %s", path, key)
				}
			}
		}
	}
	if forms < 2 {
		t.Errorf("%d forms", forms)
	}
	workflow, err := os.ReadFile(filepath.Join(root(t), ".github/workflows/ci.yml"))
	if err != nil || !strings.Contains(string(workflow), " .ci/run\n") {
		t.Errorf("the workflow does not call .ci/run: %v", err)
	}
}

func TestEveryPathThatHasAnOwnerIsThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), ".github/CODEOWNERS"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" || words[0] == "*" {
			continue
		}
		if _, err := os.Stat(filepath.Join(root(t), words[0])); err != nil || len(words) < 2 {
			t.Errorf("%s: %v", strings.TrimSpace(line), err)
		}
	}
}
