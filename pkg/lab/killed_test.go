// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/privileged"
)

// asVictim has this test binary build a lab and wait to be killed.
const asVictim = "NEARLB_TEST_LAB_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(asVictim) != "" {
		beVictim()
	}
	os.Exit(m.Run())
}

func beVictim() {
	l, err := lab.New(lab.Options{})
	if err == nil {
		var n *lab.Node
		if n, err = l.AddNode(lab.NodeOptions{Name: "n1"}); err == nil {
			var p *lab.Process
			if p, err = n.Start("sleep", []string{"/bin/sleep", "600"}); err == nil {
				fmt.Println(l.Dir, p.PID())
				select {}
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestAKilledLabLeavesNothing(t *testing.T) {
	privileged.Require(t)
	victim := exec.Command("/proc/self/exe")
	victim.Env = append(os.Environ(), asVictim+"=1")
	victim.Stderr = os.Stderr
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	_ = victim.Process.Kill()
	_ = victim.Wait()
	var dir string
	var pid int
	if _, err := fmt.Sscan(line, &dir, &pid); err != nil {
		t.Fatalf("victim said %q: %v", line, err)
	}
	await(t, func() bool { // who has ended and is not waited for yet has no command line
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return len(command) == 0
	})
	newLab(t, lab.Options{}) // sweeps, unless a lab of another process is at it
	await(t, func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
}
