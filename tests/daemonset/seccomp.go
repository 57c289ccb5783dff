// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filter lets the program make the allowed system calls alone; others fail with EPERM, as in the profiles of runtimes.
func (c container) filter() error {
	if c.Calls == nil {
		return nil
	}
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	// struct seccomp_data begins with the number of the call, then the architecture.
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	equal := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: k} // else skip one
	}
	const (
		allow = 0x7fff0000 // SECCOMP_RET_ALLOW
		fail  = 0x00050000 // SECCOMP_RET_ERRNO
	)
	skip := equal(arch)
	skip.Jt, skip.Jf = 1, 0
	program := []unix.SockFilter{load(4), skip, answer(fail | uint32(unix.EPERM)), load(0)}
	for _, call := range c.Calls {
		program = append(program, equal(call), answer(allow))
	}
	program = append(program, answer(fail|uint32(unix.EPERM)))
	list := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&list)), 0, 0); err != nil {
		return fmt.Errorf("install seccomp profile: %w", err)
	}
	return nil
}
