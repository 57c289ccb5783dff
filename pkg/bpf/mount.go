// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Mount mounts a bpffs where pins are by default, and tells whether it did: there may be one.
func Mount() (bool, error) {
	on, err := onBpffs(defaultBpffs)
	if err != nil || on {
		return false, err
	}
	if err := unix.Mount("bpf", defaultBpffs, "bpf", 0, ""); err != nil {
		return false, fmt.Errorf("mount a bpffs on %s: %w", defaultBpffs, err)
	}
	return true, nil
}
