// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

// The bpffs that an agent mounted goes with the clean-up, unless somebody else has something there. Linux may have put files of its own into it.
func TestABpffsThatTheAgentMountedGoesWithTheCleanup(t *testing.T) {
	inMounts(t, func() {
		for _, of := range []string{"", "others"} {
			pins := filepath.Join(defaultBpffs, "nearlb")
			if err := prepareDirectory(pins); err != nil {
				t.Error(err)
				return
			}
			if of != "" {
				if err := os.Mkdir(filepath.Join(defaultBpffs, of), 0o700); err != nil {
					t.Error(err)
				}
			}
			removed, err := Cleanup(pins)
			on, asked := onBpffs(defaultBpffs)
			if said := slices.Contains(removed, "bpffs on "+defaultBpffs); err != nil || asked != nil || on != (of != "") || said == on {
				t.Errorf("beside %q: removed %q, %v; a bpffs is mounted: %v, %v", of, removed, err, on, asked)
			}
		}
	})
}

// inMounts runs something on a thread with mounts of its own, where no bpffs is at the usual place.
func inMounts(t *testing.T, run func()) {
	t.Helper()
	privileged.Namespace(t, func(*os.File) {
		runtime.LockOSThread() // the thread ends with it
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		for on := err == nil; on && err == nil; {
			if on, err = onBpffs(defaultBpffs); on && err == nil {
				err = unix.Unmount(defaultBpffs, unix.MNT_DETACH)
			}
		}
		if err != nil {
			t.Errorf("make mounts of its own: %v", err)
			return
		}
		run()
	})
}
