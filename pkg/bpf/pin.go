// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// DefaultPinPath is where the agent keeps tables, programs and links, and where the read commands look.
const DefaultPinPath = "/sys/fs/bpf/nearlb"

// layoutVersion is the directory of pins of one layout.
var layoutVersion = "v" + strconv.Itoa(int(SchemaVersion))

// ErrIncompatible: pinned tables have another layout than this program's.
var ErrIncompatible = errors.New("incompatible pinned tables")

// ErrNoAgent: nothing is pinned where an agent would have pinned its tables.
var ErrNoAgent = errors.New("no agent has run here")

// perLoad are the tables that belong to one load of the programs: they contain the programs themselves.
func perLoad(m *ebpf.MapSpec) bool {
	return m.Type == ebpf.ProgramArray
}

// internal are the sections of the object that are maps only to the loader (.rodata, .bss).
func internal(name string) bool { return name != "" && name[0] == '.' }

// open looks where the tables of this start are and opens those that are there already. Of another layout, or of ones that
// do not fit, it makes a new generation beside them, and they are Former.
func (o *Objects) open(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	current, left, err := settle(o.pinPath)
	if err != nil {
		return nil, err
	}
	o.generation = own(o.pinPath)
	var found map[string]*ebpf.Map
	if current != nil {
		found, err = current.fitting(spec)
		if err != nil {
			return nil, err
		}
		if found != nil && o.options.Exchange && smaller(found, spec) {
			closeAll(found)
			found = nil
		}
		if found == nil {
			left = append([]generation{*current}, left...)
			o.generation = generation{path: filepath.Join(o.pinPath, "new_"+layoutVersion), unfinished: true, layout: SchemaVersion}
		}
	}
	for _, g := range left {
		f, err := openFormer(g, spec)
		if err != nil {
			closeAll(found)
			o.closeFormer()
			return nil, err
		}
		o.former = append(o.former, f)
	}
	if o.unfinished {
		keepSizes(spec, o.former[0].size, o.options.Exchange)
	} else {
		keepSizes(spec, func(name string) uint32 {
			if m := found[name]; m != nil {
				return m.MaxEntries()
			}
			return 0
		}, false)
	}
	return found, nil
}

// smaller tells whether a table has less room than is asked for.
func smaller(found map[string]*ebpf.Map, spec *ebpf.CollectionSpec) bool {
	var sizes Sizes
	for name := range sizes.sized() {
		if m := found[name]; m != nil && m.MaxEntries() < spec.Maps[name].MaxEntries {
			return true
		}
	}
	return false
}

// keepSizes gives tables the sizes that they have already, or, where they may grow, at least those.
func keepSizes(spec *ebpf.CollectionSpec, have func(name string) uint32, grow bool) {
	var sizes Sizes
	for name := range sizes.sized() {
		if size := have(name); size != 0 && (!grow || size > spec.Maps[name].MaxEntries) {
			spec.Maps[name].MaxEntries = size
		}
	}
	sizeTags(spec)
}

// Pinned are the sizes of the tables in force under a pin path, whatever their layout, as far as they can be opened; false
// where no tables were ever in force.
func Pinned(pinPath string) (sizes Sizes, found bool, err error) {
	all, err := generations(pinPath)
	if err != nil {
		return sizes, false, err
	}
	for _, g := range all {
		if g.unfinished {
			continue
		}
		for name, field := range sizes.sized() {
			m, err := ebpf.LoadPinnedMap(filepath.Join(g.maps(), name), nil)
			if forbidden(err) || exhausted(err) {
				return sizes, false, explain("open pinned table "+name, err)
			}
			if err != nil {
				continue // it is not there, or no table
			}
			*field = m.MaxEntries() * perElement(name)
			m.Close()
		}
		return sizes, true, nil
	}
	return sizes, false, nil
}

// fitting opens the generation's tables; nil when they are not of this layout. An error of the kernel (no memory, no descriptors, no
// permission) says nothing of the layout: the start fails, and the next one finds the tables as they are.
func (g generation) fitting(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	if g.layout != SchemaVersion {
		return nil, nil
	}
	found := map[string]*ebpf.Map{}
	for name, want := range spec.Maps {
		if perLoad(want) || internal(name) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(g.maps(), name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && renumbered(name) && m.MaxEntries() != want.MaxEntries {
			m.Close()
			if err := os.Remove(filepath.Join(g.maps(), name)); err != nil {
				return nil, fmt.Errorf("remove pin: %w", err)
			}
			continue
		}
		if err == nil {
			found[name] = m
			err = sameLayout(name, want, m)
		}
		if err != nil {
			closeAll(found)
			if refusedByKernel(err) {
				return nil, explain("open pinned table "+name, err)
			}
			return nil, nil
		}
	}
	return found, nil
}

func sameLayout(name string, want *ebpf.MapSpec, m *ebpf.Map) error {
	if m.Type() == want.Type && m.KeySize() == want.KeySize && m.ValueSize() == want.ValueSize {
		return nil
	}
	return fmt.Errorf("use pinned table %s: it is %s of %d-byte keys and %d-byte values, wanted %s of %d and %d: %w",
		name, m.Type(), m.KeySize(), m.ValueSize(), want.Type, want.KeySize, want.ValueSize, ErrIncompatible)
}

// pin pins new tables where they are shared and this load's programs under a directory of their own, which gets its name
// once it is complete.
func (o *Objects) pin(spec *ebpf.CollectionSpec) error {
	if err := o.pinTables(spec); err != nil {
		return err
	}
	return o.pinPrograms(spec)
}

func (o *Objects) pinTables(spec *ebpf.CollectionSpec) error {
	for _, dir := range []string{o.maps(), o.generation.programs(), o.links()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make pin directory: %w", err)
		}
	}
	if err := o.describe(spec); err != nil {
		return err
	}
	for name, m := range o.NearlbMaps.ByName() {
		if m.Type() == ebpf.ProgramArray {
			continue
		}
		err := m.Pin(filepath.Join(o.maps(), name))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return explain("pin table "+name, err)
		}
	}
	return nil
}

func (o *Objects) pinPrograms(spec *ebpf.CollectionSpec) error {
	arrays := map[string]*ebpf.Map{}
	for name, m := range o.NearlbMaps.ByName() {
		if m.Type() == ebpf.ProgramArray {
			arrays[name] = m
		}
	}
	digest, err := digestOf(spec, o.NearlbMaps.ByName())
	if err != nil {
		return err
	}
	id := strconv.FormatInt(time.Now().UnixNano(), 10) + "_" + digest
	if err := pinLoad(id, o.generation.programs(), o.NearlbPrograms.ByName(), arrays); err != nil {
		return err
	}
	o.loaded = id
	return nil
}

// unfinishedLoad begins the name of a directory of programs not all of which are pinned.
const unfinishedLoad = "new_"

// pinLoad pins the programs of one load with their tail calls, which the kernel forgets with the last process that has them open.
func pinLoad(id, parent string, programs map[string]*ebpf.Program, arrays map[string]*ebpf.Map) error {
	unfinished := filepath.Join(parent, unfinishedLoad+id)
	if err := os.MkdirAll(unfinished, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", unfinished, err)
	}
	for name, p := range programs {
		if err := p.Pin(filepath.Join(unfinished, name)); err != nil {
			return explain("pin program "+name, err)
		}
	}
	for name, m := range arrays {
		if err := m.Pin(filepath.Join(unfinished, name)); err != nil {
			return explain("pin table "+name, err)
		}
	}
	if err := os.Rename(unfinished, filepath.Join(parent, id)); err != nil {
		return fmt.Errorf("rename %s: %w", unfinished, err)
	}
	return nil
}

// PinnedTunnel is this node's side of the tunnel in the pinned tables, zero where there are none of this layout.
func PinnedTunnel(pinPath string) (end NearlbTunnelEnd, err error) {
	m, err := openPinned(filepath.Join(own(pinPath).maps(), NearlbMapTunnel), true)
	if errors.Is(err, os.ErrNotExist) {
		return end, nil
	}
	if err == nil {
		defer m.Close()
		if int(m.ValueSize()) != binary.Size(end) {
			return end, nil // Load says what is wrong
		}
		err = m.Lookup(uint32(0), &end)
	}
	if err != nil {
		return NearlbTunnelEnd{}, explain("read pinned table "+NearlbMapTunnel, err)
	}
	return end, nil
}

// OpenMaps opens the pinned tables of an agent that runs or ran. readOnly suits the read commands: nothing can be changed
// through them. The error says when no agent ever ran here (ErrNoAgent).
func OpenMaps(pinPath string, readOnly bool) (*NearlbMaps, error) {
	spec, err := tablesSpec()
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
		m, err := openPinned(filepath.Join(own(pinPath).maps(), name), readOnly && !mappable)
		if err == nil {
			found[name] = m
			err = sameLayout(name, want, m)
		}
		if err != nil {
			closeAll(found)
			return nil, openError(pinPath, name, spec, err)
		}
	}
	opened := &NearlbMaps{}
	setFields(opened, found)
	return opened, nil
}

func openPinned(path string, readOnly bool) (*ebpf.Map, error) {
	return ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: readOnly})
}

func openError(pinPath, name string, spec *ebpf.CollectionSpec, err error) error {
	if errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("open tables under %s: %w (name the agent's --pin-path)", pinPath, unix.ENOTDIR)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return explain(fmt.Sprintf("open tables under %s: table %s", pinPath, name), err)
	}
	all, err := generations(pinPath)
	if err != nil {
		return err
	}
	for _, g := range all {
		if g.inForce() && g.layout != SchemaVersion {
			return fmt.Errorf("open tables under %s: they are of layout %s, this nearlb has %s: use the nearlb whose agent runs, or start this one's agent, which carries them over: %w",
				pinPath, g.name(), layoutVersion, ErrIncompatible)
		}
	}
	if gone, served := unpinned(own(pinPath), spec); served && len(gone) > 0 {
		return fmt.Errorf("open tables under %s: programs are pinned there, but not table %s: an agent of another version made them, or somebody removed pins: "+
			"use the nearlb whose agent runs, or start this one's agent, which makes what is missing", pinPath, shortList(gone))
	}
	return fmt.Errorf("open tables under %s: %w (start `nearlb agent`, or name its --pin-path)", pinPath, ErrNoAgent)
}

// unpinned lists the tables that a generation lacks, and tells whether it has programs: they are pinned after the tables, so without them
// it may be a first start that goes on.
func unpinned(g generation, spec *ebpf.CollectionSpec) (tables []string, served bool) {
	for name, want := range spec.Maps {
		if perLoad(want) || internal(name) {
			continue
		}
		if !exists(filepath.Join(g.maps(), name)) {
			tables = append(tables, name)
		}
	}
	slices.Sort(tables)
	loads, err := os.ReadDir(g.programs())
	return tables, err == nil && slices.ContainsFunc(loads, func(load os.DirEntry) bool { return !strings.HasPrefix(load.Name(), unfinishedLoad) })
}

// shortList names the first ones.
func shortList(names []string) string {
	const most = 3
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Pinning tells tables in force from others that take their place.
type Pinning struct{ device, inode uint64 }

// PinnedNow is that of the tables that OpenMaps opens: cheap enough to ask each second.
func PinnedNow(pinPath string) (p Pinning, err error) {
	var s unix.Stat_t
	if err := unix.Stat(filepath.Join(own(pinPath).maps(), NearlbMapFlows), &s); err != nil {
		return p, fmt.Errorf("look at pinned table %s: %w", NearlbMapFlows, err)
	}
	return Pinning{uint64(s.Dev), s.Ino}, nil
}
