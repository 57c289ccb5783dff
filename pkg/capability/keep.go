// SPDX-License-Identifier: Apache-2.0

package capability

import (
	"fmt"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Keep gives away all other capabilities, of all threads and for good: no program that this process starts gets them back. The
// result is what it has left, which is all it had where that fails.
func Keep(keep Set) (Set, error) {
	had, err := Effective()
	if err != nil {
		return 0, err
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return had, fmt.Errorf("drop capabilities: %w", err)
	}
	var others []cap.Value
	for c := range cap.MaxBits() {
		if !keep.Has(uint(c)) {
			others = append(others, c)
		}
	}
	if had.Has(unix.CAP_SETPCAP) { // without it the bounding set stays, which no new privileges makes harmless
		if err := cap.DropBound(others...); err != nil {
			return had, fmt.Errorf("drop capabilities: bounding set: %w", err)
		}
	}
	if err := cap.ResetAmbient(); err != nil {
		return had, fmt.Errorf("drop capabilities: ambient set: %w", err)
	}
	left, err := cap.GetPID(0)
	for _, flag := range []cap.Flag{cap.Permitted, cap.Inheritable} {
		if err == nil {
			err = left.SetFlag(flag, false, others...)
		}
	}
	if err == nil {
		err = left.FillFlag(cap.Effective, left, cap.Permitted)
	}
	if err == nil {
		err = left.SetProc()
	}
	if err != nil {
		return had, fmt.Errorf("drop capabilities: %w", err)
	}
	return Effective()
}
