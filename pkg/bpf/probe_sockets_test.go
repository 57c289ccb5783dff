// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/nearlb/nearlb/tests/privileged"
)

func TestProbesOfSocketsAskForWhatTheProgramsUse(t *testing.T) {
	privileged.Require(t)
	spec, err := objectSpec()
	if err != nil {
		t.Fatal(err)
	}
	if err := socketError(btf.NewCache()); err != nil {
		t.Errorf("sock_connect4 loads here, and its probe says %v", err)
	}
	if err := socketsListed(btf.NewCache()); err != nil {
		t.Errorf("sock_peers loads here, and its probe says %v", err)
	}
	if p := spec.Programs["sock_peers"]; p.Type != ebpf.Tracing || p.AttachType != ebpf.AttachTraceIter || p.AttachTo != "udp" {
		t.Errorf("sock_peers is %v of %s: the probe asks for another", p.AttachType, p.AttachTo)
	}
	sets := func(p *ebpf.ProgramSpec) bool {
		for i := range p.Instructions {
			if p.Instructions[i].IsBuiltinCall() && p.Instructions[i].Constant == int64(asm.FnSetRetval&0xffff) {
				return true
			}
		}
		return false
	}
	for _, name := range []string{"sock_connect4", "sock_connect6", "sock_sendmsg4", "sock_sendmsg6"} {
		if p := spec.Programs[name]; p.Type != ebpf.CGroupSockAddr || !sets(p) {
			t.Errorf("%s, of type %v, does not choose the call's error: the probe asks for too much", name, p.Type)
		}
	}
}

func TestAProgramThatTheKernelHasNotIsMissed(t *testing.T) {
	privileged.Require(t)
	if err := loads(btf.NewCache(), &ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: "no_such_list", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}}); err == nil {
		t.Error("no error")
	}
}
