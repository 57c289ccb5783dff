// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// direct gives programs the address of the only element of a table where they look it up (BPF_PSEUDO_MAP_VALUE), as C has no word for that where
// the table is one of SEC(".maps"). The verifier puts some seven instructions in the place of each lookup in an array, and packets run them. spec has
// the sizes of the object, before those of Options: tables that have one element there are looked up with the key 0 alone, others never
// with a key that is known.
func direct(spec *ebpf.CollectionSpec) {
	one := func(table string) bool { return hasOne(spec.Maps[table]) }
	for _, program := range spec.Programs {
		for call, load := range lookupsOf(program.Instructions, one) {
			program.Instructions[load].Src = asm.PseudoMapValue
			program.Instructions[call] = asm.Mov.Reg(asm.R0, asm.R1).WithMetadata(program.Instructions[call].Metadata)
		}
	}
}

// hasOne tells whether a table has one element that has an address.
func hasOne(m *ebpf.MapSpec) bool { return m != nil && m.Type == ebpf.Array && m.MaxEntries == 1 }

// namesTable tells whether an instruction has R1 name a table.
func namesTable(ins asm.Instruction) bool {
	return ins.IsLoadFromMap() && ins.Src == asm.PseudoMapFD && ins.Dst == asm.R1
}

// lookupsOf gives, by the index of a call that looks up an element of a table that is wanted, that of the instruction that names the table. Left
// out are calls that may come from elsewhere than from that instruction, and instructions that may name it for others.
func lookupsOf(program asm.Instructions, wanted func(table string) bool) map[int]int {
	lookups, targets := map[int]int{}, jumpTargets(program)
	load := -1 // what names the table in R1; below 0: it is none that is wanted, or may be another
	for iter := program.Iterate(); iter.Next(); {
		ins := *iter.Ins
		if ins.Symbol() != "" || targets[iter.Offset] {
			load = -1
		}
		switch {
		case namesTable(ins) && wanted(ins.Reference()):
			load = iter.Index
		case ins.OpCode.Class().IsJump():
			if load >= 0 && ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnMapLookupElem {
				lookups[iter.Index] = load
			}
			load = -1
		case ins.Dst == asm.R1 || ins.Src == asm.R1:
			load = -1
		}
	}
	return lookups
}

// jumpTargets says of each place in a program whether an instruction jumps there. Instructions that name a table have two places.
func jumpTargets(program asm.Instructions) []bool {
	targets := make([]bool, program.Size()/asm.InstructionSize+1)
	for iter := program.Iterate(); iter.Next(); {
		op, distance := iter.Ins.OpCode, int64(iter.Ins.Offset)
		if !op.Class().IsJump() || op.JumpOp() == asm.Call || op.JumpOp() == asm.Exit {
			continue
		}
		if op.Class() == asm.Jump32Class && op.JumpOp() == asm.Ja {
			distance = iter.Ins.Constant
		}
		targets[int64(iter.Offset)+1+distance] = true
	}
	return targets
}
