// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// Loaded is what one process tells another of programs and tables that it loaded and pinned for it: all that Objects know
// beside what is pinned.
type Loaded struct {
	Load        string // name of the directory of programs; "": there are tables alone (MakeTables)
	Fresh       bool   // see Objects.Fresh
	SocketHooks string // why there are no programs of the node's own clients, "" if there are
	Conntrack   string // why they cannot ask connection tracking, likewise
	Peers       string // why what connected sockets keep cannot be carried over, likewise
}

// carryPin begins the names of PrepareSockets' programs, pinned in the generation that they carry to; one of socketLists ends each.
const carryPin = "carry_peers_"

func (g generation) carryPin(list string) string { return filepath.Join(g.path, carryPin+list) }

// Loaded is what another process is to know of these objects, to Adopt them.
func (o *Objects) Loaded() Loaded {
	return Loaded{Load: o.loaded, Fresh: o.unfinished, SocketHooks: Text(o.SocketHooks), Conntrack: Text(o.conntrack)}
}

// Hand prepares objects for a process that may not load programs: it loads and pins those that the process needs to carry tables over.
// Close the objects afterwards.
func (o *Objects) Hand() Loaded {
	l := o.Loaded()
	if len(o.former) > 0 {
		err := o.former[0].PrepareSockets(o.Peers)
		if err == nil && o.former[0].carry != nil {
			err = o.pinCarry(o.former[0].carry)
		}
		l.Peers = Text(err)
	}
	return l
}

func (o *Objects) pinCarry(programs []*ebpf.Program) error {
	if err := o.generation.unpinCarry(); err != nil {
		return err
	}
	for i, list := range socketLists {
		if err := programs[i].Pin(o.generation.carryPin(list)); err != nil {
			return explain("pin program "+carryPin+list, err)
		}
	}
	return nil
}

func (g generation) unpinCarry() error {
	for _, list := range socketLists {
		if err := os.Remove(g.carryPin(list)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove program %s%s: %w", carryPin, list, err)
		}
	}
	return nil
}

// Text is an error's text in Loaded; "" for nil.
func Text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func reason(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// Adopt opens what another process loaded and handed over with these options. It wants no more privilege than to open pins.
func Adopt(options Options, l Loaded) (_ *Objects, err error) {
	spec, err := configuredTables(options)
	if err != nil {
		return nil, err
	}
	o := &Objects{options: options, pinPath: options.PinPath, generation: generationOf(options.PinPath, l), loaded: l.Load,
		SocketHooks: reason(l.SocketHooks), asked: true, conntrack: reason(l.Conntrack)}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close())
		}
	}()
	if err := o.adoptFormer(spec, reason(l.Peers)); err != nil {
		return nil, err
	}
	tables := map[string]*ebpf.Map{}
	for name, want := range spec.Maps {
		if internal(name) || perLoad(want) && l.Load == "" {
			continue
		}
		dir := o.maps()
		if perLoad(want) {
			dir = filepath.Join(o.generation.programs(), l.Load)
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if err != nil {
			closeAll(tables)
			return nil, explain("open table "+name, err)
		}
		tables[name] = m
	}
	setFields(&o.NearlbMaps, tables)
	if l.Load == "" {
		return o, nil
	}
	programs, err := openPrograms(filepath.Join(o.generation.programs(), l.Load))
	if err != nil {
		return nil, err
	}
	setFields(&o.NearlbPrograms, programs)
	return o, nil
}

// generationOf is where what was loaded is pinned.
func generationOf(pinPath string, l Loaded) generation {
	if l.Fresh {
		return generation{path: filepath.Join(pinPath, "new_"+layoutVersion), unfinished: true, layout: SchemaVersion}
	}
	return own(pinPath)
}

func (o *Objects) adoptFormer(spec *ebpf.CollectionSpec, unprepared error) error {
	all, err := generations(o.pinPath)
	if err != nil {
		return err
	}
	for _, g := range all {
		if g.unfinished || g.path == o.generation.path {
			continue
		}
		f, err := openFormer(g, spec)
		if err != nil {
			return err
		}
		o.former = append(o.former, f)
	}
	if len(o.former) == 0 {
		return nil
	}
	first := o.former[0]
	first.unprepared = unprepared
	for _, list := range socketLists {
		p, err := ebpf.LoadPinnedProgram(o.generation.carryPin(list), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return explain("open program "+carryPin+list, err)
		}
		first.carry = append(first.carry, p)
	}
	return nil
}

// openPrograms opens those of one load.
func openPrograms(dir string) (map[string]*ebpf.Program, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list pinned programs: %w", err)
	}
	found := map[string]*ebpf.Program{}
	for _, e := range entries {
		if e.Name() == NearlbMapPrograms || e.Name() == NearlbMapXdpPrograms {
			continue
		}
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, e.Name()), nil)
		if err != nil {
			closeAll(found)
			return nil, explain("open program "+e.Name(), err)
		}
		found[e.Name()] = p
	}
	return found, nil
}

// HandLayer3 loads the programs of Layer3 for objects of another process, and pins them.
func HandLayer3(options Options, l Loaded) error {
	o, err := Adopt(options, l)
	if err != nil {
		return err
	}
	_, _, err = o.Layer3()
	return errors.Join(err, o.Close())
}

// AdoptLayer3 opens what Layer3 gives. Unless it is pinned already, hand is called to have another process load it (HandLayer3).
func (o *Objects) AdoptLayer3(hand func(Loaded) error) error {
	o.layer3Mu.Lock()
	defer o.layer3Mu.Unlock()
	if o.layer3 != nil {
		return nil
	}
	spec, err := o.layer3Spec()
	if err != nil {
		return err
	}
	collection, err := o.openLayer3(spec)
	if err != nil {
		if err := hand(o.Loaded()); err != nil {
			return fmt.Errorf("load programs for devices without an Ethernet header: %w", err)
		}
		collection, err = o.openLayer3(spec)
	}
	if err != nil {
		return err
	}
	o.layer3 = collection
	return nil
}
