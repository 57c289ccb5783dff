// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// socketError loads a program that refuses to connect, as sock_connect4 does.
func socketError(types *btf.Cache) error {
	const refused = -111 // -ECONNREFUSED
	err := loads(types, &ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R1, refused), asm.FnSetRetval.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return fmt.Errorf("load a program of sockets that chooses the call's error (Linux 5.18, CONFIG_CGROUP_BPF): %w", err)
	}
	return nil
}

// socketsListed loads iterators over sockets, as sock_peers is, and as those are that carry what sockets keep.
func socketsListed(types *btf.Cache) error {
	for _, list := range socketLists {
		err := loads(types, &ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: list, License: "Dual BSD/GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			return fmt.Errorf("load a list of %s sockets (Linux 5.9): %w", list, err)
		}
	}
	return nil
}

// leaveOutSockets takes the programs of the node's own clients out of what is to be loaded, where nobody asks for them or this
// kernel cannot have them: pods and clients off the node are served without.
func (o *Objects) leaveOutSockets(spec *ebpf.CollectionSpec) {
	if !o.options.NoSocketHooks {
		o.SocketHooks = errors.Join(socketError(o.typeCache()), socketsListed(o.typeCache()))
	}
	if !o.options.NoSocketHooks && o.SocketHooks == nil {
		return
	}
	dropSockets(spec)
}

func dropSockets(spec *ebpf.CollectionSpec) {
	for name, p := range spec.Programs {
		if p.Type == ebpf.CGroupSockAddr || p.Type == ebpf.Tracing {
			delete(spec.Programs, name)
		}
	}
}

// loads loads a program. The types of the kernel that it names are taken from types.
func loads(types *btf.Cache, spec *ebpf.ProgramSpec) error {
	all, err := ebpf.NewCollectionWithOptions(&ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{"probe": spec}}, ebpf.CollectionOptions{Cache: types})
	if err != nil {
		return err
	}
	all.Close()
	return nil
}
