// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	version, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	return version
}

// cpuModel is the processor's name, or the architecture's where /proc/cpuinfo has none.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// counter counts retired instructions of this thread in the kernel. Many virtual machines have none: it then counts 0.
type counter struct{ fd int }

func openCounter() *counter {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_HARDWARE, Config: unix.PERF_COUNT_HW_INSTRUCTIONS,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitExcludeUser,
	}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		fd = -1
	}
	return &counter{fd: fd}
}

func (c *counter) read() uint64 {
	var b [8]byte
	if c.fd < 0 {
		return 0
	}
	if n, err := unix.Read(c.fd, b[:]); n != len(b) || err != nil {
		return 0
	}
	return binary.NativeEndian.Uint64(b[:])
}

// Close ends the counting.
func (c *counter) Close() error {
	if c.fd < 0 {
		return nil
	}
	return unix.Close(c.fd)
}
