// SPDX-License-Identifier: Apache-2.0

// Package capability reads what this process may do beyond an ordinary one, and gives away what it does not need
// (capabilities(7)).
package capability

import (
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Set is a set of capabilities: bit CAP_x is set for each.
type Set uint64

// Of is the set of these capabilities (unix.CAP_x).
func Of(capabilities ...uint) (s Set) {
	for _, c := range capabilities {
		s |= 1 << c
	}
	return s
}

// Has tells whether the set contains a capability (unix.CAP_x).
func (s Set) Has(capability uint) bool { return s&(1<<capability) != 0 }

// Names are the kernel's, in its order: CAP_NET_ADMIN.
func (s Set) Names() []string {
	list := make([]string, 0, bits.OnesCount64(uint64(s)))
	for c := range uint(64) {
		if s.Has(c) {
			list = append(list, name(c))
		}
	}
	return list
}

func name(capability uint) string {
	if capability < uint(len(names)) {
		return "CAP_" + names[capability]
	}
	return fmt.Sprintf("CAP_%d", capability) // of a kernel newer than this list
}

// names are those of linux/capability.h, by number.
var names = [...]string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
	"SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
	"AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
	"PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// Effective is what the calling thread may do now, as every thread of this process unless somebody changed one.
func Effective() (Set, error) {
	_, data, err := read()
	return pair(data[0].Effective, data[1].Effective), err
}

func read() (unix.CapUserHeader, [2]unix.CapUserData, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return header, data, fmt.Errorf("read capabilities: %w", err)
	}
	return header, data, nil
}

func pair(low, high uint32) Set { return Set(high)<<32 | Set(low) }
