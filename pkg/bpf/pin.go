// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// DefaultPinPath is where the agent keeps tables, programs and links, and where the read commands look.
const DefaultPinPath = "/sys/fs/bpf/nearlb"

// layoutVersion is the directory of pins of one layout; raised with SCHEMA_VERSION.
const layoutVersion = "v1"

// ErrIncompatible: pinned tables have another layout than this program's.
var ErrIncompatible = errors.New("incompatible pinned tables")

// ErrNoAgent: nothing is pinned where an agent would have pinned its tables.
var ErrNoAgent = errors.New("no agent has run here")

func mapDirectory(pinPath string) string { return filepath.Join(pinPath, layoutVersion, "maps") }
func programDirectory(pinPath string) string {
	return filepath.Join(pinPath, layoutVersion, "programs")
}

// LinkDirectory is where links are pinned, one file a device and direction.
func LinkDirectory(pinPath string) string { return filepath.Join(pinPath, layoutVersion, "links") }

// perLoad are the tables that belong to one load of the programs: they hold the programs themselves.
func perLoad(m *ebpf.MapSpec) bool {
	return m.Type == ebpf.ProgramArray
}

// internal are the sections of the object that are maps only to the loader (.rodata, .bss).
func internal(name string) bool { return name != "" && name[0] == '.' }

// reuse opens the pinned tables that exist. A table of another size is kept and noted, one of another layout is an error.
func (o *Objects) reuse(spec *ebpf.CollectionSpec, pinPath string) (map[string]*ebpf.Map, error) {
	found := map[string]*ebpf.Map{}
	for name, want := range spec.Maps {
		if perLoad(want) || internal(name) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(mapDirectory(pinPath), name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return found, explain("open pinned table "+name, err)
		}
		found[name] = m
		if err := sameLayout(name, want, m); err != nil {
			return found, err
		}
		if m.MaxEntries() != want.MaxEntries {
			o.Kept = append(o.Kept, fmt.Sprintf("table %s keeps its %d entries (asked for %d); `nearlb cleanup` makes room for another size",
				name, m.MaxEntries()*perElement(name), want.MaxEntries*perElement(name)))
		}
	}
	slices.Sort(o.Kept)
	return found, nil
}

func sameLayout(name string, want *ebpf.MapSpec, m *ebpf.Map) error {
	if m.Type() == want.Type && m.KeySize() == want.KeySize && m.ValueSize() == want.ValueSize {
		return nil
	}
	return fmt.Errorf("use pinned table %s: it is %s of %d-byte keys and %d-byte values, wanted %s of %d and %d; run `nearlb cleanup` to start anew: %w",
		name, m.Type(), m.KeySize(), m.ValueSize(), want.Type, want.KeySize, want.ValueSize, ErrIncompatible)
}

// pin pins new tables where they are shared and this load's programs under a directory of their own, which gets its name
// once it is complete.
func (o *Objects) pin() error {
	for name, m := range o.NearlbMaps.ByName() {
		if m.Type() == ebpf.ProgramArray {
			continue
		}
		err := m.Pin(filepath.Join(mapDirectory(o.pinPath), name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return explain("pin table "+name, err)
		}
	}
	return o.pinPrograms()
}

func (o *Objects) pinPrograms() error {
	id := strconv.FormatInt(time.Now().UnixNano(), 10)
	unfinished := filepath.Join(programDirectory(o.pinPath), "new_"+id)
	if err := os.MkdirAll(unfinished, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", unfinished, err)
	}
	for name, p := range o.NearlbPrograms.ByName() {
		if err := p.Pin(filepath.Join(unfinished, name)); err != nil {
			return explain("pin program "+name, err)
		}
	}
	for name, m := range o.NearlbMaps.ByName() {
		if m.Type() != ebpf.ProgramArray {
			continue
		}
		if err := m.Pin(filepath.Join(unfinished, name)); err != nil {
			return explain("pin table "+name, err)
		}
	}
	o.programs = filepath.Join(programDirectory(o.pinPath), id)
	if err := os.Rename(unfinished, o.programs); err != nil {
		return fmt.Errorf("rename %s: %w", unfinished, err)
	}
	return nil
}

// RemoveOldPrograms unpins the programs of earlier loads. Call it when every link points at this load's.
func (o *Objects) RemoveOldPrograms() error {
	if o.programs == "" {
		return nil
	}
	entries, err := os.ReadDir(programDirectory(o.pinPath))
	if err != nil {
		return fmt.Errorf("list pinned programs: %w", err)
	}
	for _, e := range entries {
		old := filepath.Join(programDirectory(o.pinPath), e.Name())
		if old == o.programs {
			continue
		}
		if err := os.RemoveAll(old); err != nil {
			return fmt.Errorf("remove pinned programs: %w", err)
		}
	}
	return nil
}

// OpenMaps opens the pinned tables of an agent that runs or ran. readOnly suits the read commands: nothing can be changed
// through them. The error says when no agent ever ran here (ErrNoAgent).
func OpenMaps(pinPath string, readOnly bool) (*NearlbMaps, error) {
	spec, err := objectSpec()
	if err != nil {
		return nil, err
	}
	found := map[string]*ebpf.Map{}
	for name, want := range spec.Maps {
		if perLoad(want) || internal(name) {
			continue
		}
		// The kernel maps no memory of a descriptor that is read-only (mmap clears VM_SHARED, bpf_map_mmap wants it), so tables
		// that are plain memory are opened to write and mapped to read (maps.NewReader).
		mappable := want.Flags&unix.BPF_F_MMAPABLE != 0
		m, err := openPinned(filepath.Join(mapDirectory(pinPath), name), readOnly && !mappable)
		if err == nil {
			found[name] = m
			err = sameLayout(name, want, m)
		}
		if err != nil {
			closeAll(found)
			return nil, openError(pinPath, name, err)
		}
	}
	opened := &NearlbMaps{}
	setFields(opened, found)
	return opened, nil
}

func openPinned(path string, readOnly bool) (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: readOnly})
}

func openError(pinPath, name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open tables under %s: %w (start `nearlb agent`, or name its --pin-path)", pinPath, ErrNoAgent)
	}
	return explain("open pinned table "+name, err)
}
