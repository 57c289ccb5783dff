// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

// A process that ended is no error, one that is hidden is.
func TestProcessesThatAreHiddenAreToldFromThoseThatEnded(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		alive, ended := child(t), child(t)
		if err := end(ended); err != nil {
			t.Fatal(err)
		}
		if file, err := openNamespace(alive.path); file == nil || err != nil {
			t.Errorf("a process: %v, %v", file, err)
		} else {
			file.Close()
		}
		if file, err := openNamespace(ended.path); file != nil || err != nil {
			t.Errorf("a process that ended: %v, %v", file, err)
		}
		if err := giveCapabilitiesAway(); err != nil {
			t.Fatal(err)
		}
		if file, err := openNamespace(alive.path); file != nil || !errors.Is(err, errHidden) {
			t.Errorf("a process that may do more than this thread: %v, %v; want %v", file, err, errHidden)
		}
		if err := Everywhere(func() error { return nil }); !errors.Is(err, errHidden) {
			t.Errorf("all processes: %v, want %v", err, errHidden)
		}
	})
}

type process struct {
	*exec.Cmd
	path  string
	input *os.File // it ends when this is closed
}

func child(t *testing.T) process {
	t.Helper()
	theirs, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	command := exec.Command("cat")
	command.Stdin = theirs
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); _ = command.Wait() })
	return process{command, fmt.Sprintf("/proc/%d", command.Process.Pid), ours}
}

// end waits until a process has ended, and leaves it to be waited for.
func end(p process) error {
	if err := p.input.Close(); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, p.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// giveCapabilitiesAway leaves the calling thread none.
func giveCapabilitiesAway() error {
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &make([]unix.CapUserData, 2)[0])
}
