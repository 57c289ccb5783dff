// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

// The program answers with the low half of bpf_jiffies64, which is what flows remember.
func TestJiffiesAreTheProgramsJiffies(t *testing.T) {
	privileged.Require(t)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.FnJiffies64.Call(), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	before := bpf.Jiffies()
	got, _, err := program.Test(make([]byte, 64))
	if err != nil {
		t.Fatal(err)
	}
	const slack = 5 // seconds
	if apart := int32(got - before); apart < -slack*int32(bpf.JiffiesPerSecond()) || apart > slack*int32(bpf.JiffiesPerSecond()) {
		t.Errorf("the kernel says %d, we say %d at %d a second", got, before, bpf.JiffiesPerSecond())
	}
}

func TestTimeoutsComeFromTheObject(t *testing.T) {
	got := bpf.DefaultTimeouts()
	want := bpf.Timeouts{TCPEstablished: 86400, TCPUnanswered: 60, TCPClosed: 10, TCPHeld: 62, UDPAnswered: 180, UDPUnanswered: 30}
	if got != want {
		t.Errorf("timeouts %+v, want %+v", got, want)
	}
}

func TestProbeFindsNothingFatalWhereTheProgramsLoad(t *testing.T) {
	privileged.Require(t)
	for _, f := range bpf.Probe() {
		t.Logf("%s: %s (%s)", f.Feature, f.Means, f.Error)
		if f.Fatal {
			t.Errorf("%s is missing, though the programs load here", f.Feature)
		}
	}
}
