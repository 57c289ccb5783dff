// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

func tableIDs(t *testing.T, o *bpf.Objects) map[string]ebpf.MapID {
	t.Helper()
	ids := map[string]ebpf.MapID{}
	for name, m := range o.NearlbMaps.ByName() {
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		if m.Type() != ebpf.ProgramArray {
			ids[name], _ = info.ID()
		}
	}
	return ids
}

func TestProgramsAreLoadedOverTablesThatWereMadeAlone(t *testing.T) {
	privileged.Require(t)
	path := privileged.Bpffs(t)
	o := bpf.Options{Sizes: small(), PinPath: path, Reuse: true, Without: long}
	alone, err := bpf.MakeTables(o)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	if loads := loadsIn(t, path); alone.HasPrograms() || len(loads) > 0 || alone.Hand().Load != "" {
		t.Errorf("programs are there: %v", loads)
	}
	adopted, err := bpf.Adopt(o, alone.Hand())
	if err != nil {
		t.Fatal(err)
	}
	defer adopted.Close()
	var before, after bpf.NearlbSettings
	if err := adopted.Config.Lookup(uint32(0), &before); err != nil || before.Seed == 0 {
		t.Fatalf("the settings are %+v (%v)", before, err)
	}
	whole := load(t, o)
	if diff := cmp.Diff(tableIDs(t, adopted), tableIDs(t, whole)); diff != "" || !whole.HasPrograms() {
		t.Errorf("programs are loaded over other tables (-made +used):\n%s", diff)
	}
	if err := whole.Config.Lookup(uint32(0), &after); err != nil || before != after {
		t.Errorf("the settings became %+v (%v)", after, err)
	}
	if next, err := bpf.MakeTables(o); err != nil || !next.HasPrograms() || len(loadsIn(t, path)) != 1 {
		t.Errorf("where there are tables and programs: %v, loads %v", err, loadsIn(t, path))
	} else {
		next.Close()
	}
}

func TestProgramsThatNothingLeadsToAreLeftOut(t *testing.T) {
	privileged.Require(t)
	lean := func(knobs map[string]any) map[string]*ebpf.Program {
		return loadAll(t, bpf.Options{Sizes: small(), Lean: true, Knobs: knobs}).NearlbPrograms.ByName()
	}
	all := loadAll(t, bpf.Options{Sizes: small()}).NearlbPrograms.ByName()
	least := lean(nil)
	var out []string
	for name := range all {
		if least[name] == nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	want := []string{"from_net_fast", "from_pod_dns", "shortcut", "sock_explain", "tunnel_back", "tunnel_forward", "tunnel_icmp", "tunnel_in", "tunnel_opened", "tunnel_out"}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	most := lean(map[string]any{"shortcut_there": uint8(1), "dns_there": uint8(1), "tunnel_there": uint8(1), "xdp_opens": uint8(1)})
	delete(all, "sock_explain")
	if diff := cmp.Diff(slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(most))); diff != "" {
		t.Errorf("with all knobs (-want +got):\n%s", diff)
	}
}
