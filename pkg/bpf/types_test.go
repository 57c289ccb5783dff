// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/nearlb/nearlb/tests/privileged"
)

// The library decodes a module's types together with the kernel's, and takes no lock for the latter.
func TestLoadsAtOnceShareNoTypesWhereAModuleMayHaveWhatTheyCall(t *testing.T) {
	privileged.Require(t)
	calls := func(function string) *ebpf.CollectionSpec {
		call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall}.WithReference(function)
		return &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"p": {Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), call, asm.Return()}}}}
	}
	const atOnce = 3
	wants := map[string]int{"bpf_of_no_kernel": atOnce, "bpf_cast_to_kern_ctx": 1}
	if castToKernel() != nil {
		wants["bpf_cast_to_kern_ctx"] = atOnce
	}
	for function, want := range wants {
		shared := btf.NewCache()
		types, err := typesForEach(atOnce, calls(function), shared)
		if err != nil {
			t.Fatal(err)
		}
		different := map[*btf.Cache]bool{}
		for range atOnce {
			different[<-types] = true
		}
		if len(different) != want || !different[shared] {
			t.Errorf("%d loads at once of a program that calls %s share %d sets of types, want %d, one of them what is read already", atOnce, function, len(different), want)
		}
	}
}
