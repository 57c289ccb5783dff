// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// A5, A12, C9: slices are the source of truth, Endpoints are never read, and nothing is ever written but Events (B8).
func TestTheAgentReadsNoEndpointsAndWritesEventsAlone(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "manifests", "base", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rules := 0
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var role rbacv1.ClusterRole
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			rules++
			if slices.Contains(rule.Resources, "endpoints") || slices.Contains(rule.Resources, "*") {
				t.Errorf("rule %v lets the agent read v1 Endpoints", rule)
			}
			events := slices.Equal(rule.Resources, []string{"events"}) && slices.Equal(rule.APIGroups, []string{""})
			for _, verb := range rule.Verbs {
				if events && verb == "create" {
					continue
				}
				if !slices.Contains([]string{"get", "list", "watch"}, verb) {
					t.Errorf("rule %v lets the agent %s", rule, verb)
				}
			}
		}
	}
	if rules == 0 {
		t.Error("no rule found in manifests/base/rbac.yaml")
	}
}
