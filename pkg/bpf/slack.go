// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// What the verifier adds in the place of one instruction (kernel/bpf/verifier.c, do_misc_fixups), about and not less: in the place of a lookup,
// of the time, and of a division by a register.
const (
	addedByLookup   = 8
	addedByTime     = 2
	addedByDivision = 4
)

// withSlack gives a program as many instructions more, which never run, as the verifier will put into it. It takes all but the first out before it adds
// its own, and keeps their room; else it copies all that it knows of the program, some hundred bytes for each instruction, to a larger place again and
// again (bpf_patch_insn_data). On Linux 6.18 that is up to a third of its time, most where other processors do the same.
func withSlack(program asm.Instructions) asm.Instructions {
	slack := min(added(program), math.MaxInt16)
	if len(program) == 0 || slack == 0 {
		return program
	}
	first := program[0]
	padded := make(asm.Instructions, 0, len(program)+2+slack)
	padded = append(padded,
		asm.Mov.Imm(asm.R0, 0).WithMetadata(first.Metadata), // what it says of the function and of the line is of the first instruction
		asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JEq).SetSource(asm.ImmSource), Dst: asm.R0, Offset: int16(slack)},
	)
	padded = append(padded, slices.Repeat(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, slack)...)
	first.Metadata = asm.Metadata{}
	return append(append(padded, first), program[1:]...)
}

// added is about how many instructions the verifier adds to a program.
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
