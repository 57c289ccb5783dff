// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what figures are to be read with: the kernel's version and the processor's name.
func Machine() (kernel, cpu string) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel, _, _ = strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	}
	cpu = runtime.GOARCH // where /proc/cpuinfo names none
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return kernel, strings.TrimSpace(value)
		}
	}
	return kernel, cpu
}
