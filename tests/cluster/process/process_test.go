// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"os/exec"
	"testing"
)

// A process is known by its number and the moment of its start: whoever has the number later is another one, and so is one that ended
// and was not waited for yet.
func TestAProcessIsKnownByItsStart(t *testing.T) {
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	own, err := Started(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Started(os.Getpid()); err != nil || again != own {
		t.Errorf("it started at %s, %v, and at %s", again, err, own)
	}
	other, err := Started(sleep.Process.Pid)
	if err != nil || other < own && len(other) <= len(own) {
		t.Errorf("one that it started: at %s, %v; it itself at %s", other, err, own)
	}
	if err := sleep.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = sleep.Wait()
	if _, err := Started(sleep.Process.Pid); err == nil {
		t.Error("one that ended is still there")
	}
}
