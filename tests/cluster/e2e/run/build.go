// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is the path of this module.
const module = "github.com/nearlb/nearlb/tests/cluster/e2e"

// packages are what is built of Kubernetes' and CoreDNS' modules, by the name of the program.
var packages = map[string]string{
	"e2e.test":               "k8s.io/kubernetes/test/e2e",
	"ginkgo":                 "github.com/onsi/ginkgo/v2/ginkgo",
	"kubectl":                "k8s.io/kubernetes/cmd/kubectl",
	"agnhost":                "k8s.io/kubernetes/test/images/agnhost",
	"regression-issue-74839": "k8s.io/kubernetes/test/images/regression-issue-74839",
	"coredns":                module + "/coredns",
}

// build gives the file of a program, which is kept in the user's cache directory. The first time takes minutes.
func build(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "nearlb-test", "e2e")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	file := filepath.Join(dir, name)
	arguments := []string{"build"}
	if filepath.Ext(name) == ".test" {
		arguments = []string{"test", "-c"}
	}
	command := exec.Command("go", append(arguments, "-buildvcs=false", "-ldflags=-s -w", "-o", file, packages[name])...)
	if out, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return file, nil
}

// directory is where a program's sources are.
func directory(name string) (string, error) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", packages[name]).Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", packages[name], err)
	}
	return strings.TrimSpace(string(out)), nil
}
