// SPDX-License-Identifier: Apache-2.0

package bpf

import "golang.org/x/sys/unix"

// JiffiesPerSecond is the running kernel's CONFIG_HZ: one tick is what the coarse clocks resolve
// (kernel/time/posix-timers.c, KTIME_LOW_RES).
func JiffiesPerSecond() uint32 {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil || tick.Nano() <= 0 {
		return 250
	}
	return uint32((1e9 + tick.Nano()/2) / tick.Nano())
}

// Jiffies is the low half of Jiffies64.
func Jiffies() uint32 { return uint32(Jiffies64()) }

// Jiffies64 is the kernel's tick counter, right to about a second: it starts five minutes before its low half wraps
// (include/linux/jiffies.h, INITIAL_JIFFIES) and follows the monotonic clock.
func Jiffies64() uint64 {
	hz := int64(JiffiesPerSecond())
	return uint64(1<<32 + nanoseconds(unix.CLOCK_MONOTONIC)/(1e9/hz) - 300*hz)
}

// BootNanoseconds is bpf_ktime_get_boot_ns: time since boot, suspend included.
func BootNanoseconds() uint64 { return uint64(nanoseconds(unix.CLOCK_BOOTTIME)) }

func nanoseconds(clock int32) int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		return 0
	}
	return now.Nano()
}
