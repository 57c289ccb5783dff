// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestTheKernelsAnswersAreExplained(t *testing.T) {
	for want, answer := range map[string]error{
		"needs root, or the capabilities":           unix.EPERM,
		"not enough memory":                         unix.ENOMEM,
		"`nearlb check` lists what the kernel":      ebpf.ErrNotSupported,
		"this kernel's verifier refuses them":       &ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"R1 type=scalar"}},
		"load the BPF programs: something else, ok": errors.New("something else, ok"),
	} {
		if got := explain("load the BPF programs", answer).Error(); !strings.Contains(got, want) {
			t.Errorf("%v is explained as %q, want %q in it", answer, got, want)
		}
	}
}
