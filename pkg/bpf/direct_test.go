// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"maps"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// No program looks up the only element of a table. One that does again may have lookups in several tables that the compiler has made one.
func TestProgramsHaveTheAddressOfTheOnlyElementOfATable(t *testing.T) {
	spec, err := objectSpec()
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]int{}
	for name, program := range spec.Programs {
		for _, ins := range program.Instructions {
			switch {
			case !ins.IsLoadFromMap() || !hasOne(spec.Maps[ins.Reference()]):
			case ins.Src == asm.PseudoMapValue:
				named[ins.Reference()]++
			default:
				t.Errorf("program %s looks up the only element of %s", name, ins.Reference())
			}
		}
	}
	for _, table := range []string{NearlbMapConfig, NearlbMapFlowSpills, NearlbMapTunnel, NearlbMapTrace} {
		if named[table] == 0 {
			t.Errorf("no program has the address of what is in %s", table)
		}
	}
}

func TestALookupIsOfTheTableThatWasNamedLast(t *testing.T) {
	const table, other = "one", "other"
	names := func(table string) asm.Instruction { return asm.LoadMapPtr(asm.R1, 0).WithReference(table) }
	key := asm.Mov.Reg(asm.R2, asm.RFP)
	lookup := asm.FnMapLookupElem.Call()
	for name, test := range map[string]struct {
		program asm.Instructions
		want    map[int]int
	}{
		"at once":                     {asm.Instructions{key, names(table), lookup}, map[int]int{2: 1}},
		"with its key named after it": {asm.Instructions{names(table), key, lookup, names(table), lookup}, map[int]int{2: 0, 4: 3}},
		"of another table":            {asm.Instructions{names(other), lookup}, map[int]int{}},
		"of another table after all":  {asm.Instructions{names(table), names(other), lookup}, map[int]int{}},
		"of one that was copied":      {asm.Instructions{names(table), asm.Mov.Reg(asm.R6, asm.R1), lookup}, map[int]int{}},
		"of a copy":                   {asm.Instructions{names(table), asm.Mov.Reg(asm.R1, asm.R6), lookup}, map[int]int{}},
		"after another call":          {asm.Instructions{names(table), asm.FnJiffies64.Call(), lookup}, map[int]int{}},
		"after a jump elsewhere":      {asm.Instructions{names(table), jump(1), lookup, key}, map[int]int{}},
		"after a store through it":    {asm.Instructions{names(table), asm.StoreMem(asm.R1, 0, asm.R6, asm.Word), lookup}, map[int]int{}},
		"another call":                {asm.Instructions{names(table), asm.FnMapDeleteElem.Call()}, map[int]int{}},
		"where a long jump leads":     {asm.Instructions{longJump(2), names(table), lookup}, map[int]int{}},
		"where others jump to":        {asm.Instructions{jump(2), names(table), key, lookup}, map[int]int{}}, // two instructions' room are a table's
		"where others jump back to":   {asm.Instructions{names(table), lookup, jump(-2)}, map[int]int{}},
		"before where others jump to": {asm.Instructions{jump(4), key, names(table), lookup, key}, map[int]int{3: 2}},
		"in another function":         {asm.Instructions{names(table), lookup.WithSymbol("next")}, map[int]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := lookupsOf(test.program, func(name string) bool { return name == table })
			if !maps.Equal(got, test.want) {
				t.Errorf("lookups of %v: got %v, want %v", test.program, got, test.want)
			}
		})
	}
}

func jump(offset int16) asm.Instruction {
	ins := asm.JEq.Imm(asm.R0, 0, "")
	ins.Offset = offset
	return ins
}

func longJump(distance int64) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.Jump32Class).SetJumpOp(asm.Ja), Constant: distance}
}

func TestALookupBecomesTheAddress(t *testing.T) {
	tables := map[string]*ebpf.MapSpec{"one": {Type: ebpf.Array, MaxEntries: 1}, "two": {Type: ebpf.Array, MaxEntries: 2}, "each": {Type: ebpf.PerCPUArray, MaxEntries: 1}}
	var program, want asm.Instructions
	for _, table := range []string{"one", "two", "each"} {
		names, lookup := asm.LoadMapPtr(asm.R1, 0).WithReference(table), asm.FnMapLookupElem.Call()
		program = append(program, names, lookup)
		if table == "one" {
			names.Src, lookup = asm.PseudoMapValue, asm.Mov.Reg(asm.R0, asm.R1)
		}
		want = append(want, names, lookup)
	}
	direct(&ebpf.CollectionSpec{Maps: tables, Programs: map[string]*ebpf.ProgramSpec{"p": {Instructions: program}}})
	if got := fmt.Sprint(program); got != fmt.Sprint(want) {
		t.Errorf("got\n%v\nwant\n%v", program, want)
	}
}
