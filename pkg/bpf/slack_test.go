// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/nearlb/nearlb/tests/privileged"
)

// The kernel takes out what was put in for its sake but for the first instruction.
func TestSlackLeavesOneInstructionInAProgram(t *testing.T) {
	privileged.Require(t)
	spec, err := configured(Options{Sizes: Sizes{Frontends: 16, Records: 16, Slots: 1024, Backends: 16, FlowSets: 16, Affinity: 16, Services: 16}})
	if err != nil {
		t.Fatal(err)
	}
	const name = NearlbProgRoute
	program := spec.Programs[name]
	if slack := added(program.Instructions); slack < 50 {
		t.Fatalf("only %d instructions are added to program %s: the test does not test what it should", slack, name)
	}
	with, err := collectOne(spec, name, ebpf.CollectionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer with.Close()
	spec.Programs = map[string]*ebpf.ProgramSpec{name: program}
	keepCalls(spec)
	all, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if got, want := translated(t, with), translated(t, all.Programs[name])+asm.InstructionSize; got != want {
		t.Errorf("program %s has %d bytes in the kernel, want %d: one instruction more than without slack", name, got, want)
	}
}

// translated is how many bytes a program has after the verifier.
func translated(t *testing.T, program *ebpf.Program) int {
	t.Helper()
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	size, err := info.TranslatedSize()
	if err != nil {
		t.Fatal(err)
	}
	return size
}
