// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"

	"github.com/nearlb/nearlb/tests/privileged"
)

// instructionsFile has, for each program, how many instructions the verifier walked when it was written. To write it anew:
// NEARLB_UPDATE_INSTRUCTIONS=1 go test ./pkg/bpf -run Instructions
const instructionsFile = "testdata/instructions.json"

// walkedMost is what a program may cost on other kernels, whose verifiers see equal states where this one does not, and the
// other way round: half of the limit of a million.
const walkedMost = 500_000

// walkedIdle is what a program of the tunnel may cost where there is none.
const walkedIdle = 100_000

// walks is what instructionsFile holds.
type walks struct {
	Linux    string            `json:"linux"` // "6.1"
	Programs map[string]uint32 `json:"programs"`
}

// A program that costs the verifier much more than it did is nearer to its limit of a million, and mostly slower to load and
// to run as well: that should be seen, not happen.
func TestVerifierWalksAsManyInstructionsAsItDid(t *testing.T) {
	privileged.Require(t)
	got := walked(t, nil)
	if os.Getenv("NEARLB_UPDATE_INSTRUCTIONS") != "" {
		writeInstructions(t, got)
		return
	}
	want := readInstructions(t)
	for name, n := range got.Programs {
		was, ok := want.Programs[name]
		switch {
		case !ok:
			t.Errorf("program %s is not in %s", name, instructionsFile)
		case n > walkedMost:
			t.Errorf("program %s: the verifier walks %d instructions, more than %d", name, n, walkedMost)
		case strings.HasPrefix(name, "tunnel_") && n > walkedIdle:
			t.Errorf("program %s: the verifier walks %d instructions without a tunnel", name, n)
		case got.Linux == want.Linux && n > was+was/10:
			t.Errorf("program %s: the verifier walks %d instructions, %d when %s was written (10 %% more are allowed)", name, n, was, instructionsFile)
		}
	}
	for name := range want.Programs {
		if _, ok := got.Programs[name]; !ok {
			t.Errorf("%s has program %s, the object does not", instructionsFile, name)
		}
	}
}

// The tunnel's programs cost little enough where there is one, too. That they cost next to nothing where there is none, the test above says,
// which loads the programs without: a load takes an emulated kernel half a minute.
func TestVerifierWalksThroughTheTunnelWhereThereIsOne(t *testing.T) {
	privileged.Require(t)
	without, err := withoutKnobs(knobTunnel, knobXDPOpens)
	if err != nil {
		t.Fatal(err)
	}
	got := walked(t, without, knobTunnel, knobXDPOpens).Programs
	for name, n := range got {
		if n > walkedMost {
			t.Errorf("program %s: the verifier walks %d instructions, more than %d", name, n, walkedMost)
		}
	}
	for _, name := range []string{NearlbProgFromNetSlow, NearlbProgTunnelOut, NearlbProgTunnelIn, NearlbProgTunnelForward, NearlbProgXdpTunnelOut} {
		if got[name] == 0 {
			t.Errorf("program %s is not among those that read whether there is a tunnel", name)
		}
	}
}

// withoutKnobs are the programs that read none of these knobs: they are the same with any value.
func withoutKnobs(knobs ...string) (programs []string, err error) {
	spec, err := objectSpec()
	if err != nil {
		return nil, err
	}
	for name, program := range spec.Programs {
		reads := slices.ContainsFunc(program.Instructions, func(ins asm.Instruction) bool {
			return slices.ContainsFunc(knobs, func(knob string) bool {
				v := spec.Variables[knob]
				return ins.IsLoadFromMap() && ins.Reference() == v.SectionName && uint64(ins.Constant)>>32 == uint64(v.Offset)
			})
		})
		if !reads {
			programs = append(programs, name)
		}
	}
	return programs, nil
}

// sizesToVerify are of tables that are made for the verifier's sake alone.
var sizesToVerify = Sizes{Frontends: 16, Records: 16, Slots: 1024, Backends: 16, FlowSets: 16, Affinity: 16, Services: 16}

// walked loads the programs, but for some, with features that have knobs, and asks the kernel.
func walked(t *testing.T, without []string, knobs ...string) walks {
	t.Helper()
	on := map[string]any{}
	for _, knob := range knobs {
		on[knob] = uint8(1)
	}
	objects, err := Load(Options{Knobs: on, Without: without, Sizes: sizesToVerify, XDP: true})
	if err != nil {
		t.Fatal(err)
	}
	defer objects.Close()
	version, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	all := walks{Linux: fmt.Sprintf("%d.%d", version>>16, version>>8&0xff), Programs: map[string]uint32{}}
	for name, program := range objects.NearlbPrograms.ByName() {
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Fatalf("program %s: this kernel does not tell how many instructions its verifier walked (5.16 does)", name)
		}
		all.Programs[name] = n
	}
	return all
}

func readInstructions(t *testing.T) walks {
	t.Helper()
	text, err := os.ReadFile(instructionsFile)
	if err != nil {
		t.Fatal(err)
	}
	var all walks
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatalf("read %s: %v", instructionsFile, err)
	}
	return all
}

func writeInstructions(t *testing.T, all walks) {
	t.Helper()
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(instructionsFile, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
