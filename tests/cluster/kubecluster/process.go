// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// record says which process is the cluster: its number, and when it started, as others get its number later.
func record() error {
	started, err := startTime(os.Getpid())
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
	if now, err := startTime(pid); err != nil || now != started {
		return 0
	}
	return pid
}

// startTime is when a process started, in the kernel's ticks since boot. One that waits to be reaped is gone: that is an error.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	after := text[strings.LastIndexByte(string(text), ')')+1:] // its name may have anything
	fields := strings.Fields(string(after))
	if len(fields) < 20 || fields[0] == "Z" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}
