// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sync/errgroup"
)

// Options say how to load. The zero value loads private, unpinned programs and tables of default size.
type Options struct {
	Sizes   Sizes
	Trace   bool                 // fill the trace table (nearlb trace)
	Replace map[string]*ebpf.Map // tables to use in place of new ones, by name; the caller keeps and closes its own
	PinPath string               // directory on a bpffs; "": nothing is pinned
	// Exchange has tables found pinned that are smaller than Sizes replaced: larger ones are made beside them, as for another
	// layout. Without it they keep their sizes.
	Exchange bool
	Knobs    map[string]any // values of the object's `volatile const` variables, by name (bpf/lib/config.h)

	XDP           bool     // load the program of network devices at XDP, too
	XDPOpens      bool     // it may take packets out of the tunnel, for from_net
	XDPFrags      bool     // it may get frames of several pieces, as drivers have with a large MTU (BPF_F_XDP_HAS_FRAGS)
	XDPWays       uint32   // how many ways each processor remembers for it, a power of two; 0: by their number
	NoSocketHooks bool     // leave out the programs of the node's own clients
	NoReplies     bool     // leave out the programs that nothing but replies to clients meets (nearlb trace sends first packets)
	Without       []string // names of programs to leave out
	// Lean leaves out programs that nothing leads to with these knobs.
	Lean bool
	// Reuse has programs that an earlier load pinned used again, where they are what would be loaded.
	Reuse bool
}

// Objects are loaded programs and tables.
type Objects struct {
	NearlbObjects
	SocketHooks error // why this kernel cannot have the programs of the node's own clients, which are left out; nil: it can
	options     Options
	pinPath     string
	generation         // where it is pinned; zero: not pinned
	loaded      string // name of this load's directory of pinned programs; "": not pinned
	former      []*Former

	asked          bool
	conntrack      error // why the programs cannot ask connection tracking; nil: they can
	conntrackTypes []*btf.Spec
	types          *btf.Cache // of the kernel, while programs are loaded

	layer3Mu sync.Mutex
	layer3   *ebpf.Collection // nil: not asked for yet
}

// Load brings programs and tables into the kernel. With a PinPath, tables found there are used again with all that is in them,
// new ones are pinned, and the programs are new ones, pinned under a directory of their own, unless they are to be used again; they serve
// once they are attached. Tables of another layout stay as they are and serve on: see Former and TakeOver. Errors of the kernel say what is
// missing.
func Load(o Options) (*Objects, error) {
	spec, err := configured(o)
	if err != nil {
		return nil, err
	}
	if err := enoughDescriptors(len(spec.Maps) + len(spec.Programs)); err != nil {
		return nil, err
	}
	if o.PinPath != "" {
		objects, pinned, err := find(o, spec)
		if err != nil {
			return nil, err
		}
		return objects.loadPinned(spec, pinned)
	}
	objects := &Objects{options: o}
	if err := objects.settleSpec(spec, o.Replace); err != nil {
		return nil, err
	}
	if err := objects.load(spec, o.Replace); err != nil {
		return nil, err
	}
	return objects, nil
}

// MakeTables makes and pins tables alone, where none are pinned: Load with the same options loads programs over them, while they are
// published to. Where some are, it is Load.
func MakeTables(o Options) (*Objects, error) {
	spec, err := loadableTables(o)
	if err != nil {
		return nil, err
	}
	objects, pinned, err := find(o, spec)
	if err != nil {
		return nil, err
	}
	if len(pinned) > 0 || len(objects.former) > 0 {
		closeAll(pinned)
		objects.closeFormer()
		return Load(o)
	}
	if err := objects.makeTables(spec); err != nil {
		return nil, errors.Join(err, objects.Close())
	}
	return objects, nil
}

// HasPrograms tells whether the programs are loaded: not those of MakeTables.
func (o *Objects) HasPrograms() bool { return o.FromPod != nil }

// loadableTables is the object without programs, where there are descriptors for it and for them.
func loadableTables(o Options) (*ebpf.CollectionSpec, error) {
	spec, err := configuredTables(o)
	if err != nil {
		return nil, err
	}
	return spec, enoughDescriptors(len(spec.Maps) + reflect.TypeFor[NearlbPrograms]().NumField())
}

// find opens what is pinned, and gives the tables of spec the sizes that theirs have.
func find(o Options, spec *ebpf.CollectionSpec) (*Objects, map[string]*ebpf.Map, error) {
	if err := prepareDirectory(o.PinPath); err != nil {
		return nil, nil, err
	}
	objects := &Objects{options: o, pinPath: o.PinPath}
	pinned, err := objects.open(spec)
	if err != nil {
		closeAll(pinned)
	}
	return objects, pinned, err
}

// loadPinned loads programs over what find found, and pins them with the tables that are new.
func (o *Objects) loadPinned(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) (*Objects, error) {
	reused, err := o.loadOver(spec, pinned)
	if err != nil {
		return nil, err
	}
	if reused {
		return o, nil
	}
	if err := errors.Join(o.pin(spec), o.askFormer(o.NearlbMaps.Programs, "")); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// makeTables makes those that outlive a load of the programs, and pins them.
func (o *Objects) makeTables(spec *ebpf.CollectionSpec) error {
	var group errgroup.Group
	for _, perProcessor := range []bool{true, false} { // the kernel takes as long for the former, an element at a time, as for all others
		group.Go(func() error {
			tables := *spec
			tables.Programs, tables.Variables, tables.Maps = nil, nil, maps.Clone(spec.Maps)
			maps.DeleteFunc(tables.Maps, func(name string, m *ebpf.MapSpec) bool {
				return perLoad(m) || internal(name) || perProcessor != (m.Type == ebpf.PerCPUArray)
			})
			collection, err := ebpf.NewCollection(&tables)
			if err != nil {
				return explain("make tables", err)
			}
			setFields(&o.NearlbMaps, collection.Maps) // each has fields of its own
			clear(collection.Maps)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return errors.Join(initialise(o.Config), o.pinTables(spec))
}

// loadOver loads over tables that are pinned, or uses programs of an earlier load again, and tells which.
func (o *Objects) loadOver(spec *ebpf.CollectionSpec, pinned map[string]*ebpf.Map) (reused bool, err error) {
	defer func() {
		if !reused {
			closeAll(pinned)
		}
		if err != nil {
			o.closeFormer()
		}
	}()
	reusable := o.reusable(spec, pinned)
	if reusable {
		likely, err := o.likely(spec, pinned)
		if err != nil {
			return false, err
		}
		if reused, err := o.reuse(likely, pinned); reused || err != nil {
			o.asked = reused
			return reused, err
		}
	}
	replace := map[string]*ebpf.Map{}
	maps.Copy(replace, pinned)
	maps.Copy(replace, o.options.Replace)
	if err := o.settleSpec(spec, replace); err != nil {
		return false, err
	}
	if reusable {
		if reused, err := o.reuse(spec, pinned); reused || err != nil {
			return reused, err
		}
	}
	return false, o.load(spec, replace)
}

// Ready finds what would keep Load from working, as far as that shows before anything is made. The pin path is made.
func Ready(o Options) error {
	if _, err := loadableTables(o); err != nil {
		return err
	}
	if err := kernelTypes(); err != nil {
		return explain("load the BPF programs", err)
	}
	return prepareDirectory(o.PinPath)
}

// configured is the object with sizes and knobs set.
func configured(o Options) (*ebpf.CollectionSpec, error) {
	spec, err := objectSpec()
	if err != nil {
		return nil, err
	}
	return spec, configure(spec, o)
}

// configuredTables is the same without programs.
func configuredTables(o Options) (*ebpf.CollectionSpec, error) {
	spec, err := tablesSpec()
	if err != nil {
		return nil, err
	}
	return spec, configure(spec, o)
}

func configure(spec *ebpf.CollectionSpec, o Options) error {
	sizes := o.Sizes.WithDefaults()
	if err := sizes.Check(); err != nil {
		return err
	}
	if err := sizes.apply(spec); err != nil {
		return err
	}
	if o.NoReplies {
		leaveOut(spec, replies)
	}
	leaveOut(spec, o.Without)
	err := errors.Join(chooseXDP(spec, o), setKnobs(spec, o))
	if o.Lean {
		leaveOutUnused(spec)
	}
	return err
}

func (o *Objects) load(spec *ebpf.CollectionSpec, replace map[string]*ebpf.Map) error {
	collection, err := collect(spec, replace, o.loadOptions())
	o.types = nil
	if err != nil {
		return explain("load the BPF programs", err)
	}
	setFields(&o.NearlbPrograms, collection.Programs)
	setFields(&o.NearlbMaps, collection.Maps)
	for name := range o.NearlbMaps.ByName() {
		delete(collection.Maps, name)
	}
	clear(collection.Programs)
	collection.Close()
	if err := initialise(o.Config); err != nil {
		return errors.Join(err, o.Close())
	}
	return nil
}

// settleSpec gives the object what this machine and its tables decide.
func (o *Objects) settleSpec(spec *ebpf.CollectionSpec, replace map[string]*ebpf.Map) error {
	if err := fitReplacements(spec, replace); err != nil {
		return err
	}
	if err := errors.Join(setDerived(spec), o.askConntrack(spec)); err != nil {
		return err
	}
	o.leaveOutSockets(spec)
	return nil
}

// fitReplacements gives the object the sizes of tables that exist already, as the loader compares them.
func fitReplacements(spec *ebpf.CollectionSpec, replace map[string]*ebpf.Map) error {
	for name, m := range replace {
		want := spec.Maps[name]
		if want == nil {
			return fmt.Errorf("replace table %s: the object has no such table", name)
		}
		want.MaxEntries = m.MaxEntries()
	}
	return nil
}

// Close closes the descriptors. What is pinned or attached goes on working.
func (o *Objects) Close() error {
	o.layer3Mu.Lock()
	defer o.layer3Mu.Unlock()
	if o.layer3 != nil {
		o.layer3.Close()
		o.layer3 = nil
	}
	o.closeFormer()
	return o.NearlbObjects.Close()
}

func (o *Objects) closeFormer() {
	for _, f := range o.former {
		f.close()
	}
	o.former = nil
}

// NewMaps makes private tables without programs: for tests and for whoever only publishes and reads.
func NewMaps(sizes Sizes) (*NearlbMaps, error) {
	spec, err := configuredTables(Options{Sizes: sizes})
	if err != nil {
		return nil, err
	}
	for _, m := range spec.Maps {
		if perLoad(m) {
			m.Contents = nil
		}
	}
	spec.Maps[NearlbMapSocks].MaxEntries = 1 // programs alone fill it, and the kernel takes longer for all of its entries than for the other tables
	var tables NearlbMaps
	if err := spec.LoadAndAssign(&tables, nil); err != nil {
		return nil, explain("make tables", err)
	}
	if err := initialise(tables.Config); err != nil {
		return nil, errors.Join(err, tables.Close())
	}
	return &tables, nil
}

// Placeholder are private tables of next to no size, without programs: for an agent that does not know yet how large its own
// are to be.
func Placeholder() (*Objects, error) {
	tables, err := NewMaps(Sizes{Frontends: 1, Records: 2, Slots: 1, Backends: 2, FlowSets: 1, Affinity: 1, Fragments: 1, SourceRanges: 1, Services: 2, Names: 1, Answers: 1})
	if err != nil {
		return nil, err
	}
	return &Objects{NearlbObjects: NearlbObjects{NearlbMaps: *tables}, asked: true}, nil
}
