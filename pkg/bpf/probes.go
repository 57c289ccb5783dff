// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// probes is what Probe tries, in the order of its answer.
func probes() []probe {
	return []probe{
		{Finding{Feature: "permission to use BPF", Fatal: true, Means: "run as root, or with the capabilities BPF, NET_ADMIN and PERFMON"}, permitted},
		{Finding{Feature: "Linux 6.1", Since: "6.1", Fatal: true, Means: "older kernels are not supported"}, recent},
		{Finding{Feature: "kernel BTF", Since: "5.2", Fatal: true, Means: "build the kernel with CONFIG_DEBUG_INFO_BTF"}, kernelTypes},
		{Finding{Feature: "traffic control programs", Since: "4.1", Fatal: true, Means: "build the kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"}, trafficControl},
		{Finding{Feature: "ring buffer", Since: "5.8", Fatal: true, Means: "needed for sampled drops"}, func() error { return features.HaveMapType(ebpf.RingBuf) }},
		{Finding{Feature: "programs of sockets that choose the call's error", Since: "5.18", Means: "the node's own clients are not served, pods and clients off the node are; build the kernel with CONFIG_CGROUP_BPF"}, func() error { return socketError(btf.NewCache()) }},
		{Finding{Feature: "lists of sockets", Since: "5.9", Means: "needed to find UDP clients whose backend is gone, without which the node's own clients are not served: build the kernel with CONFIG_BPF_SYSCALL, CONFIG_NET and CONFIG_DEBUG_INFO_BTF"}, func() error { return socketsListed(btf.NewCache()) }},
		{Finding{Feature: "kfunc bpf_cast_to_kern_ctx", Since: "6.2", Means: "the state of a packet's checksum cannot be read; the kernel's slower checksum helpers are needed"}, castToKernel},
		{Finding{Feature: "source addresses of routes for BPF", Since: "6.7", Means: "SNAT uses the address of the device towards the backend, also where its route names another"}, fibSource},
		{Finding{Feature: "TCX links", Since: "6.6", Means: "programs are attached by clsact instead"}, expressPath},
		{Finding{Feature: "bpffs on " + defaultBpffs, Means: "nearlb agent mounts it; or: mount -t bpf bpf " + defaultBpffs}, mounted},
	}
}

func permitted() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	return m.Close()
}

func recent() error {
	const floor = 6<<16 | 1<<8
	version, err := features.LinuxVersionCode()
	if err == nil && version < floor {
		err = fmt.Errorf("this is Linux %d.%d", version>>16, version>>8&0xff)
	}
	return err
}

func kernelTypes() error {
	_, err := btf.LoadKernelSpec()
	return err
}

func trafficControl() error { return features.HaveProgramType(ebpf.SchedCLS) }

func castToKernel() error {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return err
	}
	var f *btf.Func
	return spec.TypeByName("bpf_cast_to_kern_ctx", &f)
}

// expressPath attaches to a device that cannot exist: a kernel with TCX says so, an older one does not know the request.
func expressPath() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := link.AttachTCX(link.TCXOptions{Program: p, Attach: ebpf.AttachTCXIngress, Interface: 1<<31 - 1})
	if err == nil {
		l.Close()
	}
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func mounted() error {
	on, err := onBpffs(defaultBpffs)
	if err == nil && !on {
		err = errors.New("not mounted")
	}
	return err
}
