// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nearlb/nearlb/tests/cluster/process"
)

// record says which process is the cluster: its number, and when it started, as others get its number later.
func record() error {
	started, err := process.Started(os.Getpid())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "process"), fmt.Appendf(nil, "%d %s\n", os.Getpid(), started), 0o600)
}

// running is the pid of the cluster; 0: none runs.
func running() int {
	text, err := os.ReadFile(filepath.Join(dir, "process"))
	if err != nil {
		return 0
	}
	var pid int
	var started string
	if _, err := fmt.Sscan(string(text), &pid, &started); err != nil {
		return 0
	}
	if now, err := process.Started(pid); err != nil || now != started {
		return 0
	}
	return pid
}
