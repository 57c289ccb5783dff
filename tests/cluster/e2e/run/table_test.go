// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// spec is a test of a report.
func spec(name string, state types.SpecState, message string) types.SpecReport {
	return types.SpecReport{ContainerHierarchyTexts: []string{"[sig-network] Services"}, LeafNodeText: name, LeafNodeType: types.NodeTypeIt, State: state,
		Failure: types.Failure{Message: message}}
}

func TestTheTableTellsWhatPassesWithWhomAndWhyNot(t *testing.T) {
	const passed, failed, skipped = types.SpecStatePassed, types.SpecStateFailed, types.SpecStateSkipped
	of := table{Date: "2026-01-02", Version: "v9", Focus: "serve|pass"}
	of.add("kube-proxy", []types.SpecReport{spec("serve", passed, ""), spec("both fail", failed, "x"), spec("flaky", passed, ""), spec("other", skipped, "")})
	of.add("nearlb", []types.SpecReport{spec("serve", passed, ""), spec("both fail", failed, "x"), spec("cloud", skipped, "wants a | cloud"),
		spec("flaky", types.SpecStateTimedout, "10.244.1.17:80 was silent\nfor 30s at 0xc000 <*errors>")})
	of.add("nearlb", []types.SpecReport{spec("serve", passed, ""), spec("both fail", failed, "x"), spec("flaky", passed, ""), spec("other", skipped, "")})
	text := of.String()
	for _, want := range []string{
		"| Services serve | passed | passed |  |\n",
		"| Services both fail | **failed** | **failed** | x |\n",
		"| Services flaky | passed | **passed 1 of 2** | ...:80 was silent for ... at ... ... |\n",
		"| Services cloud | - | does not run | wants a / cloud |\n",
		"| passed | 2 | 1 |\n| failed, once at least | 1 | 2 |\n| do not run here | 0 | 1 |\n",
		"2026-01-02, nearlb v9", "Of the 4 tests of sig-network, these are 4: those whose names match `serve|pass`", "Kubernetes v",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q", want)
		}
	}
	if strings.Contains(text, "other") && strings.Contains(text, "Services other") {
		t.Error("a test that was not chosen has a row")
	}
	if got := of.worse(); !slices.Equal(got, []string{"Services flaky"}) {
		t.Errorf("worse than with kube-proxy: %q", got)
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestTheTableSaysThatKubeProxyDidNotRun(t *testing.T) {
	of := table{}
	of.add("nearlb", []types.SpecReport{spec("serve", types.SpecStatePassed, "")})
	if text := of.String(); !strings.Contains(text, "not yet with kube-proxy, with nearlb in kube-proxy's place") {
		t.Error(text)
	}
}

func TestNothingIsWorseBeforeItRuns(t *testing.T) {
	kubeProxy := []types.SpecReport{spec("serve", types.SpecStatePassed, ""), spec("follow", types.SpecStatePassed, "")}
	var of table
	of.add("kube-proxy", kubeProxy)
	if got := of.worse(); len(got) > 0 {
		t.Errorf("without a run of nearlb: %q", got)
	}
	of.add("nearlb", []types.SpecReport{spec("serve", types.SpecStatePassed, ""), spec("follow", types.SpecStateSkipped, "")})
	if got := of.worse(); !slices.Equal(got, []string{"Services follow"}) {
		t.Errorf("with a run that did not come to a test: %q", got)
	}
}

// A run of nearlb alone does not cost the column of kube-proxy, which was measured before with the same tests.
func TestAColumnThatDidNotRunStaysAsLongAsTheTestsAreTheSame(t *testing.T) {
	const passed, failed, skipped = types.SpecStatePassed, types.SpecStateFailed, types.SpecStateSkipped
	var before table
	for _, second := range []types.SpecState{passed, failed} {
		before.add("kube-proxy", []types.SpecReport{spec("serve | TCP", passed, ""), spec("flaky", second, "late"), spec("fail", failed, "x"), spec("cloud", skipped, "wants one")})
	}
	before.add("nearlb", []types.SpecReport{spec("serve | TCP", failed, "y"), spec("fail", failed, "x")})
	now := func(text string) string {
		file := filepath.Join(t.TempDir(), "conformance.md")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var after table
		after.add("nearlb", []types.SpecReport{spec("serve | TCP", passed, ""), spec("flaky", passed, ""), spec("fail", passed, "")})
		if err := after.keep("kube-proxy", file); err != nil {
			t.Fatal(err)
		}
		return after.String()
	}
	text := now(before.String())
	for _, want := range []string{
		"| Services serve / TCP | passed | passed |  |\n", "| Services flaky | **passed 1 of 2** | passed |  |\n", "| Services fail | **failed** | passed | x |\n",
		"| Services cloud | does not run | - | wants one |\n", "| passed | 1 | 3 |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	if text := now(strings.ReplaceAll(before.String(), kubernetes(), "Kubernetes v1.0.0")); !strings.Contains(text, "| Services fail | - | passed |  |\n") {
		t.Errorf("a column of other tests is kept:\n%s", text)
	}
}

// A message that does not say what may be behind it is explained, others are not.
func TestTheTableExplainsWhatMessagesDoNot(t *testing.T) {
	var of table
	of.add("nearlb", []types.SpecReport{spec("known", types.SpecStateFailed, "boom-server pod received a RST from the client"), spec("other", types.SpecStateFailed, "timed out")})
	text := of.String()
	for _, want := range []string{"| Services known | - | **failed** | may be the test's own: ", "| Services other | - | **failed** | timed out |\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
}
