// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// PrepareSockets loads what CarrySockets runs: to load it wants more privilege than an agent keeps.
func (f *Former) PrepareSockets(peers *ebpf.Map) error {
	t := f.tables[NearlbMapPeers]
	if t == nil || f.carry != nil || f.unprepared != nil {
		return f.unprepared
	}
	if t.unreadable != nil {
		return fmt.Errorf("carry table peers of layout %s: %w", f.Layout(), t.unreadable)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "carry_peers", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter,
		AttachTo: "bpf_sk_storage_map", License: "Dual BSD/GPL", Instructions: carryOne(t.value, peers)})
	if err != nil {
		return explain("carry table peers: load", err)
	}
	f.carry = p
	return nil
}

// CarrySockets gives the sockets that have an entry in the other generation's table peers one in this: an entry belongs to its
// socket, so only a program can make it. One that is there already stays. The program walks the other table (Linux 5.9), and
// is made for the two layouts. Call it once when the other generation's programs write no more: an entry may be half written
// until then.
func (f *Former) CarrySockets() error {
	if f.carry == nil {
		return nil
	}
	walk, err := link.AttachIter(link.IterOptions{Program: f.carry, Map: f.tables[NearlbMapPeers].table})
	if err != nil {
		return fmt.Errorf("carry table peers: %w", err)
	}
	defer walk.Close()
	file, err := walk.Open()
	if err != nil {
		return fmt.Errorf("carry table peers: %w", err)
	}
	defer file.Close()
	if _, err := io.Copy(io.Discard, file); err != nil {
		return fmt.Errorf("carry table peers: %w", err)
	}
	return nil
}

// carryOne is the program for one socket: struct bpf_iter__bpf_sk_storage_map has the socket and its value in the table that
// is walked, both NULL at the end.
func carryOne(c *conversion, peers *ebpf.Map) asm.Instructions {
	const socketAt, valueAt, create = 16, 24, 1
	size := (c.to + 7) / 8 * 8
	code := asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, socketAt, asm.DWord),
		asm.LoadMem(asm.R8, asm.R1, valueAt, asm.DWord),
		asm.JEq.Imm(asm.R7, 0, "end"),
		asm.JEq.Imm(asm.R8, 0, "end"),
		asm.Mov.Imm(asm.R0, 0),
	}
	for at := -size; at < 0; at += 8 {
		code = append(code, asm.StoreMem(asm.RFP, int16(at), asm.R0, asm.DWord))
	}
	for _, m := range c.moves {
		for done := 0; done < m.size; {
			width, bytes := widest(m.from+done, m.to+done, m.size-done)
			code = append(code,
				asm.LoadMem(asm.R0, asm.R8, int16(m.from+done), width),
				asm.StoreMem(asm.RFP, int16(m.to+done-size), asm.R0, width))
			done += bytes
		}
	}
	return append(code,
		asm.LoadMapPtr(asm.R1, peers.FD()),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, int32(-size)),
		asm.Mov.Imm(asm.R4, create),
		asm.FnSkStorageGet.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	)
}

// widest is the largest access that both places are aligned for.
func widest(from, to, rest int) (asm.Size, int) {
	for _, w := range []struct {
		size  asm.Size
		bytes int
	}{{asm.DWord, 8}, {asm.Word, 4}, {asm.Half, 2}} {
		if from%w.bytes == 0 && to%w.bytes == 0 && rest >= w.bytes {
			return w.size, w.bytes
		}
	}
	return asm.Byte, 1
}
