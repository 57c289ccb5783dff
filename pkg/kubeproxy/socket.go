// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// getSocketOption is getsockopt(2) into a buffer: x/sys/unix has it for known types only.
func getSocketOption(fd, level, option int, buffer []byte) error {
	length := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
