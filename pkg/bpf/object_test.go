// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// An agent of another layout finds the fields of a flow in the tables' description, by these names.
func TestFlowsAreDescribedByTheNamesThatOtherAgentsKnow(t *testing.T) {
	spec, err := objectSpec()
	if err != nil {
		t.Fatal(err)
	}
	text, err := description(spec)
	if err != nil {
		t.Fatal(err)
	}
	described, err := btf.LoadSpecFromReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var flow *btf.Struct
	if err := described.TypeByName("flow", &flow); err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, m := range flow.Members {
		names = append(names, m.Name)
	}
	want := []string{"word", "touched", "seen", "backend", "client", "frontend", "port", "other_port", "frontend_port", "generation", "protocol", "flags", "source", "side", "service"}
	if !slices.Equal(names, want) {
		t.Errorf("a flow is described by %v, want %v", names, want)
	}
}

// What a load makes of the object is not the next one's, whether it is kept for that or parsed anew.
func TestLoadsDoNotShareTheObject(t *testing.T) {
	defer transient.Store(transient.Load())
	for _, seldom := range []bool{false, true} {
		if transient.Store(false); seldom {
			LoadsSeldom()
		}
		first, err := objectSpec()
		if err != nil {
			t.Fatal(err)
		}
		want := len(first.Programs)
		clear(first.Programs)
		first.Maps[NearlbMapFlows].MaxEntries = 1
		next, err := objectSpec()
		if err != nil {
			t.Fatal(err)
		}
		if len(next.Programs) != want || next.Maps[NearlbMapFlows].MaxEntries == 1 {
			t.Errorf("loads seldom %t: %d programs of %d, %d sets of flows", seldom, len(next.Programs), want, next.Maps[NearlbMapFlows].MaxEntries)
		}
	}
}

// The object is the same for all processors: what x86 need not wait for is left out when it is loaded.
func TestReadersFenceWhereTheProcessorReordersLoads(t *testing.T) {
	for arch, want := range map[string]uint8{"amd64": 0, "arm64": 1, "riscv64": 1} {
		if got := weakMemory(arch); got != want {
			t.Errorf("%s: %d, want %d", arch, got, want)
		}
	}
	spec, err := configured(Options{})
	if err != nil {
		t.Fatal(err)
	}
	var fences uint8
	if err := spec.Variables[knobWeakMemory].Get(&fences); err != nil || fences != weakMemory(runtime.GOARCH) {
		t.Errorf("on %s the programs are loaded with %d, %v", runtime.GOARCH, fences, err)
	}
}
