// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// spareDescriptors are for what is open for a while beside maps and programs: kernel BTF, probes, links, pins of a former load.
const spareDescriptors = 64

// enoughDescriptors tells beforehand that the process may open too few files for so many tables and programs. Half-way through it would not be told
// as that: a probe that gets no descriptor reads as a kernel that lacks the feature.
func enoughDescriptors(wanted int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil && !errors.Is(err, unix.EMFILE) {
		return fmt.Errorf("count open files: %w", err)
	}
	wants := uint64(len(open) + wanted + spareDescriptors)
	if limit.Cur < wants {
		return fmt.Errorf("load the BPF programs: %w: it takes %d, the limit is %d (raise it: ulimit -n)", unix.EMFILE, wants, limit.Cur)
	}
	return nil
}
