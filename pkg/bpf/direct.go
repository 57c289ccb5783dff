// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// direct gives programs the address of the only element of a table where they look it up (BPF_PSEUDO_MAP_VALUE), as C has no word for that where
// the table is one of SEC(".maps"). The verifier puts some seven instructions in the place of each lookup in an array, and packets run them.
func direct(spec *ebpf.CollectionSpec) {
	for _, program := range spec.Programs {
		for call, load := range lookupsOf(program.Instructions, func(name string) bool { return hasOne(spec.Maps[name]) }) {
			program.Instructions[load].Src = asm.PseudoMapValue
			program.Instructions[call] = asm.Mov.Reg(asm.R0, asm.R1).WithMetadata(program.Instructions[call].Metadata)
		}
	}
}

// hasOne tells whether a table has one element that has an address.
func hasOne(m *ebpf.MapSpec) bool { return m != nil && m.Type == ebpf.Array && m.MaxEntries == 1 }

// lookupsOf gives, by the index of a call that looks up an element of a table that is wanted, that of the instruction that says which table. Left
// out are calls that may come from elsewhere than from that instruction, and instructions that may say so for others.
func lookupsOf(program asm.Instructions, wanted func(table string) bool) map[int]int {
	lookups, targets := map[int]int{}, jumpTargets(program)
	load := -1 // what the table in R1 is from; below 0: it is none that is wanted, or may be another
	for i, ins := range program {
		if ins.Symbol() != "" || targets[i] {
			load = -1
		}
		switch {
		case ins.IsLoadFromMap() && ins.Src == asm.PseudoMapFD && ins.Dst == asm.R1 && wanted(ins.Reference()):
			load = i
		case ins.OpCode.Class().IsJump():
			if load >= 0 && ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnMapLookupElem {
				lookups[i] = load
			}
			load = -1
		case ins.Dst == asm.R1 || ins.Src == asm.R1:
			load = -1
		}
	}
	return lookups
}

// jumpTargets are the indexes of instructions that others jump to.
func jumpTargets(program asm.Instructions) map[int]bool {
	indexes := map[asm.RawInstructionOffset]int{}
	for iter := program.Iterate(); iter.Next(); {
		indexes[iter.Offset] = iter.Index
	}
	targets := map[int]bool{}
	for iter := program.Iterate(); iter.Next(); {
		if op := iter.Ins.OpCode; op.Class().IsJump() && op.JumpOp() != asm.Call && op.JumpOp() != asm.Exit {
			targets[indexes[iter.Offset+1+asm.RawInstructionOffset(iter.Ins.Offset)]] = true
		}
	}
	return targets
}
