// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// What the kernel refuses for want of something says nothing of the table that is pinned: it is no table of another layout.
func TestARefusalByTheKernelIsNoOtherLayout(t *testing.T) {
	for _, number := range []unix.Errno{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR, unix.EPERM, unix.EACCES, unix.EIO} {
		if err := fmt.Errorf("open: %w", &ebpf.VerifierError{Cause: number}); !refusedByKernel(err) {
			t.Errorf("%v counts as a finding about the table", number)
		}
	}
	for _, err := range []error{ErrIncompatible, ebpf.ErrMapIncompatible, errors.New("no BTF")} {
		if refusedByKernel(fmt.Errorf("open: %w", err)) {
			t.Errorf("%v counts as a refusal", err)
		}
	}
	for _, number := range []unix.Errno{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR} {
		if !exhausted(fmt.Errorf("open: %w", number)) {
			t.Errorf("%v will not pass", number)
		}
	}
	if exhausted(unix.EPERM) || forbidden(unix.ENOMEM) || !forbidden(unix.EPERM) || !forbidden(unix.EACCES) {
		t.Error("a missing permission is taken for a lack of memory, or the other way round")
	}
}
