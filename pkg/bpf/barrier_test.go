// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

// A program that counts its beginnings and its ends, with some work in between, runs again and again on another processor: whatever
// had begun before Wait has ended after it.
func TestABarrierWaitsForProgramsThatHaveBegun(t *testing.T) {
	privileged.Require(t)
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		t.Fatal(err)
	}
	defer counts.Close()
	program := slowProgram(t, counts)
	memory, err := unix.Mmap(counts.FD(), 0, unix.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	begun, ended := (*uint64)(unsafe.Pointer(&memory[0])), (*uint64)(unsafe.Pointer(&memory[8]))

	barrier, err := NewBarrier()
	if err != nil {
		t.Fatal(err)
	}
	defer barrier.Close()
	var stop atomic.Bool
	var runs sync.WaitGroup
	runs.Go(func() {
		for !stop.Load() {
			if _, err := program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 100}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	between := 0
	for round := 0; round < 50 || between == 0 && round < 100_000; round++ { // on busy processors it takes many until one is in the middle
		before := atomic.LoadUint64(begun)
		if atomic.LoadUint64(ended) < before {
			between++
		}
		if err := barrier.Wait(); err != nil {
			t.Fatal(err)
		}
		if after := atomic.LoadUint64(ended); after < before {
			t.Fatalf("%d runs had begun, and only %d have ended", before, after)
		}
	}
	stop.Store(true)
	runs.Wait()
	if between == 0 {
		t.Error("no run was looked at in the middle: the test shows nothing")
	}
}

func slowProgram(t *testing.T, counts *ebpf.Map) *ebpf.Program {
	t.Helper()
	count := func(offset int16) asm.Instructions {
		return asm.Instructions{
			asm.LoadMem(asm.R1, asm.R6, offset, asm.DWord),
			asm.Add.Imm(asm.R1, 1),
			asm.StoreMem(asm.R6, offset, asm.R1, asm.DWord),
		}
	}
	instructions := asm.Instructions{asm.LoadMapValue(asm.R6, counts.FD(), 0)}
	instructions = append(instructions, count(0)...)
	instructions = append(instructions,
		asm.Mov.Imm(asm.R7, 0),
		asm.Add.Imm(asm.R7, 1).WithSymbol("work"),
		asm.JLT.Imm(asm.R7, 100_000, "work"),
	)
	instructions = append(instructions, count(8)...)
	instructions = append(instructions, asm.Mov.Imm(asm.R0, 0), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: instructions})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}
