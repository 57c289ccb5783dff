// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// The verifier takes longer for the programs than an agent for all the rest of its start. Programs of an earlier load serve a new agent
// as well if they are what it would load: the same object with the same knobs, over the same tables. The directory in which a load is
// pinned has a digest of these in its name.

// likely gives the object what this machine and the tables decide, as long as the kernel lacks nothing: to ask it takes longer than to
// look for such programs.
func (o *Objects) likely(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) (*ebpf.CollectionSpec, error) {
	spec = spec.Copy()
	if err := errors.Join(fitReplacements(spec, pinned), setDerived(spec)); err != nil {
		return nil, err
	}
	if o.options.NoSocketHooks {
		dropSockets(spec)
	}
	if _, chosen := o.options.Knobs[knobConntrack]; chosen {
		return spec, o.askConntrack(spec)
	}
	return spec, setKnob(spec, knobConntrack, uint8(1))
}

// reuse opens the programs of an earlier load that are what is to be loaded, over the tables that are pinned; false where there are none,
// or not all of them.
func (o *Objects) reuse(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) (bool, error) {
	want, err := digestOf(spec, pinned)
	if err != nil {
		return false, err
	}
	loads, err := os.ReadDir(o.generation.programs())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("list pinned programs: %w", err)
	}
	for _, load := range slices.Backward(loads) { // the last one first
		if strings.HasPrefix(load.Name(), unfinishedLoad) || !strings.HasSuffix(load.Name(), "_"+want) {
			continue
		}
		programs, calls, err := o.openLoad(spec, filepath.Join(o.generation.programs(), load.Name()))
		if err != nil {
			continue // and what was attached of it stays
		}
		tables := maps.Clone(pinned)
		maps.Copy(tables, calls)
		setFields(&o.NearlbPrograms, programs)
		setFields(&o.NearlbMaps, tables)
		o.loaded = load.Name()
		return true, nil
	}
	return false, nil
}

// reusable tells whether programs of an earlier load may serve: over tables that are all there already, and lead to no others.
func (o *Objects) reusable(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) bool {
	if !o.options.Reuse || len(o.former) > 0 || o.unfinished {
		return false
	}
	if _, err := os.Stat(o.layoutPin()); err != nil {
		return false
	}
	for name, m := range spec.Maps {
		if !perLoad(m) && !internal(name) && pinned[name] == nil {
			return false
		}
	}
	return true
}

// openLoad opens the programs that are pinned in a directory and their tables of tail calls. It fails unless they are those of the object, all
// of them, and the tail calls lead to them.
func (o *Objects) openLoad(spec *ebpf.CollectionSpec, dir string) (programs map[string]*ebpf.Program, calls map[string]*ebpf.Map, err error) {
	calls = map[string]*ebpf.Map{}
	defer func() {
		if err != nil {
			closeAll(programs)
			closeAll(calls)
		}
	}()
	if programs, err = openPrograms(dir); err != nil {
		return nil, nil, err
	}
	asExpected := len(programs) == len(spec.Programs)
	for name, m := range spec.Maps {
		if !perLoad(m) {
			continue
		}
		if calls[name], err = ebpf.LoadPinnedMap(filepath.Join(dir, name), nil); err != nil {
			delete(calls, name)
			return programs, calls, explain("open table "+name, err)
		}
		asExpected = asExpected && leads(calls[name], m.Contents, programs, name == NearlbMapPrograms && len(o.former) > 0)
	}
	if !asExpected {
		return programs, calls, fmt.Errorf("the programs pinned in %s are not those that were loaded", dir)
	}
	return programs, calls, nil
}

// leads tells whether a table of tail calls has these programs and no others. While a layout is being left, it leads to programs of that as
// well.
func leads(calls *ebpf.Map, want []ebpf.MapKV, programs map[string]*ebpf.Program, leaving bool) bool {
	ids := map[uint32]ebpf.ProgramID{}
	for _, entry := range want {
		at, _ := entry.Key.(uint32)
		name, _ := entry.Value.(string)
		p := programs[name]
		if p == nil {
			return false
		}
		info, err := p.Info()
		if err != nil {
			return false
		}
		ids[at], _ = info.ID()
	}
	for at := range calls.MaxEntries() {
		if _, former := formerPrograms[NearlbProgram(at)]; former && leaving {
			continue
		}
		var id uint32
		err := calls.Lookup(at, &id)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || ebpf.ProgramID(id) != ids[at] {
			return false
		}
	}
	return true
}

// loaderRevision is another one whenever this package changes otherwise than before what it loads of an object.
const loaderRevision = 1

// digestOf is of all that decides what programs are like once they are loaded, on a machine that is not booted anew meanwhile: the object,
// which of its programs with which flags, the values of its knobs, the tables, and who loads them: the library, and what this package changes.
func digestOf(spec *ebpf.CollectionSpec, tables map[string]*ebpf.Map) (string, error) {
	sum := sha256.New()
	digest(sum, loaderVersion())
	digest(sum, []byte{loaderRevision})
	digest(sum, _NearlbBytes)
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		digest(sum, binary.BigEndian.AppendUint32([]byte(name), spec.Programs[name].Flags))
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Variables)) {
		digest(sum, append([]byte(name+"="), spec.Variables[name].Value...))
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := tables[name]
		if m == nil || perLoad(spec.Maps[name]) {
			continue // of this load alone
		}
		info, err := m.Info()
		if err != nil {
			return "", fmt.Errorf("read table %s: %w", name, err)
		}
		id, _ := info.ID()
		digest(sum, binary.BigEndian.AppendUint32([]byte(name), uint32(id)))
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// digest adds something of any length.
func digest(sum hash.Hash, content []byte) {
	sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(content))))
	sum.Write(content)
}

// loaderVersion is the version of the library that loads programs, as the program was built with.
func loaderVersion() []byte {
	const library = "github.com/cilium/ebpf"
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return nil
	}
	for _, module := range info.Deps {
		if module.Path == library {
			return []byte(module.Version)
		}
	}
	return nil
}
