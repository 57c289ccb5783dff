// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const dirPattern = "nearlb-lab-"

// makeDir makes a lab's directory and locks it for as long as the process lives.
func makeDir(parent string) (string, *os.File, error) {
	for {
		dir, err := os.MkdirTemp(parent, dirPattern)
		if err != nil {
			return "", nil, err
		}
		// A lab that starts at the same moment may take an unlocked directory for a dead one's.
		if lock, err := lockDir(dir); err == nil {
			if _, err := os.Stat(dir); err == nil {
				return dir, lock, nil
			}
			_ = lock.Close()
		}
	}
}

// lockDir takes the lock that says "this lab is alive". It fails when somebody else has it.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// RemoveStale removes what labs left that were killed, as New does.
func RemoveStale() { removeStale(os.TempDir()) }

// removeStale removes directories of labs whose process is gone. Nothing is mounted in them: their mounts were in a mount
// namespace that went with the process.
func removeStale(parent string) {
	found, _ := filepath.Glob(filepath.Join(parent, dirPattern+"*"))
	for _, dir := range found {
		lock, err := lockDir(dir)
		if err != nil {
			continue // alive
		}
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
	removeStaleCgroups(parent)
}
