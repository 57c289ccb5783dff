// SPDX-License-Identifier: Apache-2.0

package privileged

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/cgroup"
)

// Cgroup makes a cgroup of the test's own and gives its directory. It is a threaded one below the process's: a thread joins it
// by JoinCgroup, the process stays where it is. It is removed when the test ends, as soon as its threads have.
func Cgroup(t testing.TB) string {
	t.Helper()
	Require(t)
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(own, "nearlb-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			err := os.Remove(dir)
			if err != nil && errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
				continue
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("remove cgroup: %v", err)
			}
			return
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// JoinCgroup moves the calling thread, which must be locked: sockets that it opens from here on belong to the cgroup, and so
// do processes that it starts. LeaveCgroup takes it back, for a thread that does not end.
func JoinCgroup(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.threads"), []byte("0"), 0)
}

// LeaveCgroup takes the calling thread back to where it was before JoinCgroup.
func LeaveCgroup(dir string) error { return JoinCgroup(filepath.Dir(dir)) }
