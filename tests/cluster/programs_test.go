// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/tests/cluster/control"
)

func TestTheProgramsSayTheVersionOfTheirModule(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes").Output()
	if got := strings.TrimSpace(string(out)); err != nil || got != control.Version {
		t.Errorf("the module is %q, %v; want %s", got, err, control.Version)
	}
}
