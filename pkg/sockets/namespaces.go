// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// AbortEverywhere is Abort in every network namespace that a process of /proc is in.
func AbortEverywhere(chosen Chosen) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return 0, fmt.Errorf("list network namespaces: %w", err)
	}
	ended := 0
	var errs []error
	seen := map[uint64]bool{}
	for _, path := range files {
		n, err := abortIn(path, seen, chosen)
		ended += n
		if err != nil {
			errs = append(errs, fmt.Errorf("look into %s: %w", path, err))
		}
	}
	return ended, errors.Join(errs...)
}

// abortIn is Abort in the namespace that a file leads to, unless it is seen already. A namespace counts as seen once it is open:
// the process that the file belongs to may have ended since it was listed, and another one be there still.
func abortIn(path string, seen map[uint64]bool, chosen Chosen) (int, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ESRCH) {
		return 0, nil // its process has ended, as far as anybody may know
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var namespace unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &namespace); err != nil {
		return 0, err
	}
	if seen[namespace.Ino] {
		return 0, nil
	}
	seen[namespace.Ino] = true
	return Abort(netns.NsHandle(file.Fd()), chosen)
}
