// SPDX-License-Identifier: Apache-2.0

package control

import (
	"os/exec"
	"strings"
	"testing"
)

func TestTheProgramsSayTheVersionOfTheirModule(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	if got := strings.TrimSpace(string(out)); err != nil || got != Version {
		t.Errorf("the module is %q, %v; want %s", got, err, Version)
	}
}
