// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// socketLists are the kernel's iterators over sockets (Linux 5.9) that carry what these keep: one for each protocol that connects.
// The iterator over the storage itself would meet nobody else's sockets, but some kernels refuse it, as it may write what it walks.
var socketLists = []string{"tcp", "udp"}

// PrepareSockets loads what CarrySockets runs: to load it wants more privilege than an agent keeps.
func (f *Former) PrepareSockets(peers *ebpf.Map) error {
	t := f.tables[NearlbMapPeers]
	if t == nil || f.carry != nil || f.unprepared != nil {
		return f.unprepared
	}
	if t.unreadable != nil {
		return fmt.Errorf("carry table peers of layout %s: %w", f.Layout(), t.unreadable)
	}
	for _, list := range socketLists {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: carryPin + list, Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter,
			AttachTo: list, License: "Dual BSD/GPL", Instructions: carryOne(t.value, t.table, peers)})
		if err != nil {
			f.closeCarry()
			return explain("carry table peers: load", err)
		}
		f.carry = append(f.carry, p)
	}
	return nil
}

func (f *Former) closeCarry() {
	for _, p := range f.carry {
		p.Close()
	}
	f.carry = nil
}

// CarrySockets gives the sockets of the calling thread's network namespace that have an entry in the other generation's table peers
// one in this: an entry belongs to its socket, so only a program can make it. One that is there already stays. The programs walk all
// sockets of the namespace, and are made for the two layouts. Call it once for each namespace when the other generation's programs
// write no more: an entry may be half written until then.
func (f *Former) CarrySockets() error {
	for _, p := range f.carry {
		if err := walk(p); err != nil {
			return fmt.Errorf("carry table peers: %w", err)
		}
	}
	return nil
}

// walk runs an iterator to its end.
func walk(p *ebpf.Program) error {
	attached, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return err
	}
	defer attached.Close()
	file, err := attached.Open()
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(io.Discard, file)
	return err
}

// carryOne is the program for one socket: struct bpf_iter__tcp and bpf_iter__udp have it in the same place, NULL at the end. What is no
// whole socket (TIME_WAIT, a request) has no storage, as the helper says.
func carryOne(c *conversion, former, peers *ebpf.Map) asm.Instructions {
	const socketAt, create = 8, 1
	size := (c.to + 7) / 8 * 8
	code := asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, socketAt, asm.DWord),
		asm.JEq.Imm(asm.R7, 0, "end"),
		asm.LoadMapPtr(asm.R1, former.FD()),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnSkStorageGet.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(asm.R8, asm.R0),
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
