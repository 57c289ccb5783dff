// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// suite are the files of the Kubernetes suite that are about Services and their proxies.
var suite = []string{"service", "endpointslice", "endpointslicemirroring", "endpoints", "dual_stack", "topology_hints",
	"traffic_distribution", "networking", "conntrack", "loadbalancer", "service_cidrs"}

// e2e.md says of every test of the suite where the same is shown here, or why it is not. No test of the suite is left out, none is
// made up, and the tests that are named exist.
func TestEveryTestOfTheKubernetesSuiteHasARow(t *testing.T) {
	text, err := os.ReadFile("e2e.md")
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, row := range regexp.MustCompile(`(?m)^\| (\w+) \| (.+) \| (.+) \|$`).FindAllStringSubmatch(string(text), -1) {
		if row[1] != "file" {
			have = append(have, row[1]+": "+row[2])
		}
	}
	want := testsOfTheSuite(t)
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("e2e.md has rows of\n%s\nthe suite has\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	ours := testsHere(t)
	for _, named := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1) {
		if !ours[named[1]] {
			t.Errorf("e2e.md names %s, which is no test", named[1])
		}
	}
}

func testsOfTheSuite(t *testing.T) (out []string) {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatalf("find the suite: %v", err)
	}
	name := regexp.MustCompile(`It\("([^"]+)"`)
	for _, file := range suite {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "test/e2e/network", file+".go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range name.FindAllStringSubmatch(string(text), -1) {
			out = append(out, fmt.Sprintf("%s: %s", file, match[1]))
		}
	}
	return out
}

func testsHere(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	have := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range function.FindAllSubmatch(text, -1) {
			have[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return have
}
