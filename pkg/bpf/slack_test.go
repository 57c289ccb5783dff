// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/nearlb/nearlb/tests/privileged"
)

func TestSlackIsInFrontOfAFunctionThatKeepsItsName(t *testing.T) {
	body := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1).WithSymbol("p"), asm.FnMapLookupElem.Call(), asm.FnJiffies64.Call(), asm.Div.Reg(asm.R7, asm.R8), asm.Return().WithSymbol("next"),
	}
	const slack = addedByLookup + addedByTime + addedByDivision
	got := withSlack(body)
	if len(got) != len(body)+2+slack {
		t.Fatalf("%d instructions became %d, want %d more", len(body), len(got), 2+slack)
	}
	if got[0].Symbol() != "p" || got[1].Offset != slack {
		t.Errorf("it begins with %v and %v, want symbol p and a jump over %d", got[0], got[1], slack)
	}
	for i, ins := range got[2+slack:] {
		if want := body[i].WithSymbol(""); i > 0 && fmt.Sprint(ins) != fmt.Sprint(body[i]) || i == 0 && (ins.Symbol() != "" || ins.OpCode != want.OpCode) {
			t.Errorf("instruction %d is %v, want %v", i, ins, body[i])
		}
	}
	for name, as := range map[string]asm.Instructions{
		"nothing": {}, "nothing that grows": {asm.Return()},
		"one that names a table first": append(asm.Instructions{asm.LoadMapPtr(asm.R1, 0).WithReference("table")}, body...),
	} {
		if got := withSlack(as); len(got) != len(as) {
			t.Errorf("%s: %d instructions became %d", name, len(as), len(got))
		}
	}
}

// The verifier takes out what was put in for its sake but for the first instruction.
func TestVerifierTakesOutAllButOneInstructionOfTheSlack(t *testing.T) {
	privileged.Require(t)
	spec, err := configured(Options{Sizes: sizesToVerify})
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
