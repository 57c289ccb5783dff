// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/nearlb/nearlb/tests/privileged"
)

// Kernels that are maintained for long have it earlier than their version says.
func TestTheKernelIsAskedWhetherRoutesTellTheirSource(t *testing.T) {
	privileged.Require(t)
	if known, wanted := fibSource() == nil, kernelHasConstant(t, "BPF_FIB_LOOKUP_SRC"); known != wanted {
		t.Errorf("source addresses found: %v, want %v: %v", known, wanted, fibSource())
	}
}

// kernelHasConstant tells whether an enum of the running kernel has a constant of this name.
func kernelHasConstant(t *testing.T, name string) bool {
	t.Helper()
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	for kind, err := range spec.All() {
		if err != nil {
			t.Fatal(err)
		}
		enum, ok := kind.(*btf.Enum)
		if ok && slices.ContainsFunc(enum.Values, func(v btf.EnumValue) bool { return v.Name == name }) {
			return true
		}
	}
	return false
}
