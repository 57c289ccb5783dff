// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// fibSource asks whether bpf_fib_lookup finds source addresses (BPF_FIB_LOOKUP_SRC), by a question about no address family:
// a kernel that knows the flag refuses the family, an older one the flag.
var fibSource = sync.OnceValue(func() error {
	const (
		source     = 1 << 4
		questionAt = -64 // struct bpf_fib_lookup on the stack
	)
	code := asm.Instructions{asm.Mov.Imm(asm.R0, 0)}
	for at := int16(questionAt); at < 0; at += 8 {
		code = append(code, asm.StoreMem(asm.RFP, at, asm.R0, asm.DWord))
	}
	code = append(code,
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, questionAt), asm.Mov.Imm(asm.R3, -questionAt), asm.Mov.Imm(asm.R4, source),
		asm.FnFibLookup.Call(), asm.Return(),
	)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: code})
	if err != nil {
		return err
	}
	defer p.Close()
	answer, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		return err
	}
	if int32(answer) == -int32(unix.EINVAL) {
		return errors.New("the kernel does not know the flag BPF_FIB_LOOKUP_SRC")
	}
	return nil
})
