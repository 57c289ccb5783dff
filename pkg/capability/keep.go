// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrThreads: a program built with cgo has threads that Go does not know of, so nothing was given away.
var ErrThreads = errors.New("this program is built with cgo and cannot change all of its threads; build it with CGO_ENABLED=0")

// Keep gives away all other capabilities, of all threads and for good: no program that this process starts gets them back. The
// result is what it has left, which is all it had where that fails.
func Keep(keep Set) (Set, error) {
	header, data, err := read()
	if err != nil {
		return 0, err
	}
	had := pair(data[0].Effective, data[1].Effective)
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		if errors.Is(err, syscall.ENOTSUP) {
			err = ErrThreads
		}
		return had, fmt.Errorf("drop capabilities: %w", err)
	}
	if had.Has(unix.CAP_SETPCAP) { // without it the bounding set stays, which no new privileges makes harmless
		if err := bound(keep); err != nil {
			return had, fmt.Errorf("drop capabilities: bounding set: %w", err)
		}
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0); err != nil {
		return had, fmt.Errorf("drop capabilities: ambient set: %w", err)
	}
	for i := range data {
		part := uint32(keep >> (32 * i))
		data[i].Permitted &= part
		data[i].Inheritable &= part
		data[i].Effective = data[i].Permitted
	}
	err = onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	runtime.KeepAlive(&header)
	runtime.KeepAlive(&data)
	if err != nil {
		return had, fmt.Errorf("drop capabilities: %w", err)
	}
	return Effective()
}

// bound makes the bounding set no larger than keep.
func bound(keep Set) error {
	for c := range uint(64) {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			return nil // the kernel has no more
		}
		if has == 0 || keep.Has(c) {
			continue
		}
		if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); err != nil {
			return err
		}
	}
	return nil
}

func onAllThreads(call, a, b, c uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall6(call, a, b, c, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
