// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Instructions that the verifier inserts in the place of one (kernel/bpf/verifier.c, do_misc_fixups), at most: of a lookup, of the time, and of a
// division by a register.
const (
	addedByLookup   = 8
	addedByTime     = 2
	addedByDivision = 4
)

// withSlack gives a program as many instructions that never run as the verifier will insert into it. The verifier removes dead code before it inserts
// any, and keeps the memory. Without room to spare it copies its notes, some hundred bytes for each instruction of the program, whenever they
// have grown by a page (bpf_patch_insn_data): on Linux 6.18 up to a third of its time, most where other processors do the same.
//
// What is loaded is no longer the object alone: loaderRevision counts changes here and in direct.
func withSlack(program asm.Instructions) asm.Instructions {
	slack := min(added(program), math.MaxInt16)
	if slack == 0 || program[0].Reference() != "" || btf.CORERelocationMetadata(&program[0]) != nil {
		return program // what the first instruction says must be about the function alone, and goes to the new one
	}
	first, over := program[0], asm.JEq.Imm(asm.R0, 0, "")
	over.Offset = int16(slack)
	padded := make(asm.Instructions, 0, len(program)+2+slack)
	padded = append(padded, asm.Mov.Imm(asm.R0, 0).WithMetadata(first.Metadata), over)
	padded = append(padded, slices.Repeat(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, slack)...)
	first.Metadata = asm.Metadata{}
	return append(append(padded, first), program[1:]...)
}

// added is about how many instructions the verifier inserts into a program.
func added(program asm.Instructions) (sum int) {
	for _, ins := range program {
		switch op := ins.OpCode; {
		case ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnMapLookupElem:
			sum += addedByLookup
		case ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnJiffies64:
			sum += addedByTime
		case op.Class().IsALU() && op.Source() == asm.RegSource && (op.ALUOp() == asm.Div || op.ALUOp() == asm.Mod):
			sum += addedByDivision
		}
	}
	return sum
}
