// SPDX-License-Identifier: Apache-2.0

// Package process tells a process from one that has its number later.
package process

import (
	"fmt"
	"os"
	"strings"
)

// Started is when a process started, in the kernel's ticks since boot. One that waits to be reaped is gone: that is an error.
func Started(pid int) (string, error) {
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
