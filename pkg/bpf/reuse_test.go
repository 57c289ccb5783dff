// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/tests/privileged"
)

// again loads as an agent does that was started again.
func again(t *testing.T, path string, change func(*bpf.Options)) *bpf.Objects {
	t.Helper()
	o := bpf.Options{Sizes: small(), PinPath: path, Reuse: true}
	if change != nil {
		change(&o)
	}
	return load(t, o)
}

// programIDs are the numbers of programs by name, and of what the tail calls lead to, by index: those at XDP behind those at TC.
func programIDs(t *testing.T, o *bpf.Objects) (programs map[string]ebpf.ProgramID, calls map[uint32]uint32) {
	t.Helper()
	programs, calls = map[string]ebpf.ProgramID{}, map[uint32]uint32{}
	for name, p := range o.NearlbPrograms.ByName() {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		programs[name], _ = info.ID()
	}
	first := uint32(0)
	for _, table := range []*ebpf.Map{o.Programs, o.XdpPrograms} {
		for at := range table.MaxEntries() {
			var id uint32
			if table.Lookup(at, &id) == nil {
				calls[first+at] = id
			}
		}
		first += table.MaxEntries()
	}
	return programs, calls
}

func loadsIn(t *testing.T, path string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(path, "v6", "programs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func TestPinnedProgramsServeAgainWhereNothingDiffers(t *testing.T) {
	privileged.Require(t)
	path := privileged.Bpffs(t)
	atXDP := func(o *bpf.Options) { o.XDP = true }
	first := again(t, path, atXDP)
	from, _, err := first.Layer3()
	if err != nil {
		t.Fatal(err)
	}
	programs, calls := programIDs(t, first)
	second := again(t, path, atXDP)
	gotPrograms, gotCalls := programIDs(t, second)
	if !maps.Equal(programs, gotPrograms) || !maps.Equal(calls, gotCalls) || calls[first.Programs.MaxEntries()] == 0 {
		t.Errorf("programs %v with tail calls %v, want %v with %v", gotPrograms, gotCalls, programs, calls)
	}
	if text(first.Conntrack()) != text(second.Conntrack()) || text(first.SocketHooks) != text(second.SocketHooks) {
		t.Errorf("conntrack: %v, sockets: %v; want %v, %v", second.Conntrack(), second.SocketHooks, first.Conntrack(), first.SocketHooks)
	}
	flat, _, err := second.Layer3()
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(tablesOf(t, flat), tablesOf(t, from)) {
		t.Error("programs for devices without an Ethernet header were loaded again")
	}
	if dirs := loadsIn(t, path); len(dirs) != 2 {
		t.Errorf("%v are pinned, want one load and its programs for devices without an Ethernet header", dirs)
	}
	adopted, err := bpf.Adopt(bpf.Options{Sizes: small(), PinPath: path, XDP: true}, second.Hand())
	if err != nil {
		t.Fatal(err)
	}
	defer adopted.Close()
	if got, gotCalls := programIDs(t, adopted); !maps.Equal(programs, got) || !maps.Equal(calls, gotCalls) {
		t.Errorf("a process that adopts them has programs %v with tail calls %v, want %v with %v", got, gotCalls, programs, calls)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestProgramsAreLoadedAgainWhereSomethingDiffers(t *testing.T) {
	privileged.Require(t)
	path := privileged.Bpffs(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pins := func(table string) string { return filepath.Join(path, "v6", "maps", table) }
	last := again(t, path, nil)
	dir := func() string { all := loadsIn(t, path); return all[len(all)-1] }
	noSockets := func(o *bpf.Options) { o.NoSocketHooks = true }
	for _, c := range []struct {
		name   string
		damage func()
		change func(*bpf.Options)
	}{
		{"another knob", nil, func(o *bpf.Options) { o.Knobs = map[string]any{"every_namespace": uint8(1)} }},
		{"no programs of sockets", nil, noSockets},
		{"a tail call is missing", func() { must(last.Programs.Delete(uint32(slices.Min(slices.Collect(maps.Keys(callsOf(t, last))))))) }, noSockets},
		{"a program's pin is missing", func() { must(os.Remove(filepath.Join(dir(), "from_pod"))) }, noSockets},
		{"a table was made anew", func() { must(os.Remove(pins("events"))); again(t, path, noSockets); last.RemoveOldPrograms() }, noSockets},
		{"the tables' description is missing", func() { must(os.Remove(filepath.Join(path, "v6", "layout"))) }, noSockets},
		{"pins of a load that was killed", func() { must(os.Rename(dir(), filepath.Join(filepath.Dir(dir()), "new_"+filepath.Base(dir())))) }, noSockets},
	} {
		before, _ := programIDs(t, last)
		if c.damage != nil {
			c.damage()
		}
		now := again(t, path, c.change)
		after, calls := programIDs(t, now)
		for name, id := range after {
			if before[name] == id {
				t.Errorf("%s: %s is the one of before", c.name, name)
			}
		}
		next := again(t, path, c.change)
		if got, gotCalls := programIDs(t, next); !maps.Equal(got, after) || !maps.Equal(calls, gotCalls) {
			t.Errorf("%s: what was loaded is not used again", c.name)
		}
		last = next
	}
}

func callsOf(t *testing.T, o *bpf.Objects) map[uint32]uint32 {
	_, calls := programIDs(t, o)
	return calls
}
