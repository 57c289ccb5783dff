// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// Linux 6.1 gives a chain of calls 512 bytes of stack and rounds each function's part up to 32; later kernels round to 16.
const (
	stackMost  = 512
	stackRound = 32
)

// A program that a newer kernel loads may need too much stack for the oldest one that is supported.
func TestTheStackOfEveryProgramFitsTheOldestKernel(t *testing.T) {
	spec, err := objectSpec()
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for name, program := range spec.Programs {
		bytes, chain := deepest(functionsOf(program.Instructions), name)
		if bytes > stackMost {
			t.Errorf("program %s: %s take %d bytes of stack, more than %d", name, strings.Join(chain, ", "), bytes, stackMost)
		}
		most = max(most, bytes)
	}
	if most < stackMost/2 {
		t.Errorf("no program takes more than %d bytes of stack: the test does not see them", most)
	}
}

// function is one function of a program.
type function struct {
	stack int // bytes
	calls []string
}

// functionsOf splits a program at its symbols, which are its functions' names.
func functionsOf(program asm.Instructions) map[string]*function {
	all := map[string]*function{}
	var f *function
	var copies map[asm.Register]bool // of the frame pointer
	for _, ins := range program {
		if name := ins.Symbol(); name != "" {
			f, copies = &function{}, map[asm.Register]bool{asm.R10: true}
			all[name] = f
		}
		f.stack = max(f.stack, reach(ins, copies))
		if ins.IsFunctionCall() {
			f.calls = append(f.calls, ins.Reference())
		}
	}
	return all
}

// reach is how far below the frame pointer an instruction reads, writes or points.
func reach(ins asm.Instruction, copies map[asm.Register]bool) int {
	op := ins.OpCode
	switch {
	case op == asm.Mov.Op(asm.RegSource):
		copies[ins.Dst] = copies[ins.Src]
	case op == asm.Add.Op(asm.ImmSource) && copies[ins.Dst]:
		delete(copies, ins.Dst)
		return int(-ins.Constant)
	case op.Class().IsLoad() && ins.Src == asm.R10, op.Class().IsStore() && ins.Dst == asm.R10:
		return int(-ins.Offset)
	}
	return 0
}

// deepest follows the calls from a function to where they need the most stack.
func deepest(all map[string]*function, name string) (bytes int, chain []string) {
	f := all[name]
	for _, called := range f.calls {
		if n, below := deepest(all, called); n > bytes {
			bytes, chain = n, below
		}
	}
	return bytes + (max(f.stack, 1)+stackRound-1)/stackRound*stackRound, append([]string{name}, chain...)
}
