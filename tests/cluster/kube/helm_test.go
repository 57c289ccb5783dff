// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/kube"
)

// The chart is installed by README's command, with Helm itself, upgraded, rolled back and uninstalled beside connections that go on:
// `make kube-helm`.
func TestTheChartIsInstalledUpgradedRolledBackAndUninstalled(t *testing.T) {
	wanted(t, "NEARLB_HELM", "make kube-helm")
	helm, err := control.BuildOf("helm", "tests/cluster/helm", "helm.sh/helm/v4/cmd/helm")
	must(t, err)
	s := start(t, kube.PointToPoint)
	s.importImages()
	do := func(command string) {
		t.Log(command)
		must(t, s.try(strings.Replace(command, "helm", helm, 1)))
	}

	do(strings.Replace(s.readmesHelm(), "https://192.0.2.1:6443", s.Plane.URL(), 1))
	s.awaitAgents()
	s.serve()
	do("helm upgrade nearlb manifests/helm/nearlb -n kube-system --reuse-values --set image.tag=next --set flags.zone=a")
	s.awaitAgents()
	s.checkImage("nearlb:next")
	s.awaitAnswers()
	do("helm rollback nearlb -n kube-system")
	s.awaitAgents()
	s.checkImage("nearlb:latest")
	s.awaitAnswers()
	do("helm uninstall nearlb -n kube-system")
	s.kubectl("-n", "kube-system", "wait", "--for=delete", "pods", "-l", "app.kubernetes.io/name=nearlb", limit)
	s.awaitAnswers() // without agents
	if left := s.kubectl("get", "clusterroles,clusterrolebindings,daemonsets,serviceaccounts,configmaps,services,secrets", "-A", "-o", "name"); strings.Contains(left, "/nearlb") ||
		strings.Contains(left, "helm.release") {
		t.Errorf("uninstall leaves:\n%s", left)
	}
}

// readmesHelm is what README has people type.
func (s *smoke) readmesHelm() string {
	text, err := os.ReadFile(filepath.Join(s.root, "README.md"))
	must(s.T, err)
	command := regexp.MustCompile("`(helm install [^`]+)`").FindSubmatch(text)
	if command == nil {
		s.Fatal("README has no command of Helm")
	}
	return string(command[1])
}

// checkImage wants the set of agents to have this one.
func (s *smoke) checkImage(want string) {
	s.Helper()
	if got := s.kubectl("-n", "kube-system", "get", "daemonset", "nearlb", "-o", "jsonpath={.spec.template.spec.containers[0].image}"); got != want {
		s.Errorf("the agents' image is %s, want %s", got, want)
	}
}
