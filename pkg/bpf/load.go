// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
)

// Options say how to load. The zero value loads private, unpinned programs and tables of default size.
type Options struct {
	Sizes   Sizes
	Trace   bool                 // fill the trace table (nearlb trace)
	Replace map[string]*ebpf.Map // tables to use in place of new ones, by name; the caller keeps and closes its own
	PinPath string               // directory on a bpffs; "": nothing is pinned
	Knobs   map[string]any       // values of the object's `volatile const` variables, by name (bpf/lib/config.h)
}

// Objects are loaded programs and tables.
type Objects struct {
	NearlbObjects
	Kept     []string // tables found pinned whose size is not the asked one, each as a sentence
	pinPath  string
	programs string // directory of this load's pinned programs; "": not pinned
}

// Load brings programs and tables into the kernel. With a PinPath, tables found there are used again with all they hold,
// new ones are pinned, and the programs are always new ones, pinned under a directory of their own; they serve once they are
// attached. A table of another layout is an error (ErrIncompatible). Errors of the kernel say what is missing.
func Load(o Options) (*Objects, error) {
	spec, err := configured(o)
	if err != nil {
		return nil, err
	}
	objects := &Objects{pinPath: o.PinPath}
	if o.PinPath == "" {
		if err := objects.load(spec, o.Replace); err != nil {
			return nil, err
		}
		return objects, nil
	}
	if err := prepareDirectory(o.PinPath); err != nil {
		return nil, err
	}
	pinned, err := objects.reuse(spec, o.PinPath)
	defer closeAll(pinned)
	if err != nil {
		return nil, err
	}
	replace := maps.Clone(pinned)
	maps.Copy(replace, o.Replace)
	if err := objects.load(spec, replace); err != nil {
		return nil, err
	}
	if err := objects.pin(); err != nil {
		return nil, errors.Join(err, objects.Close())
	}
	return objects, nil
}

// configured is the object with sizes and knobs set.
func configured(o Options) (*ebpf.CollectionSpec, error) {
	spec, err := objectSpec()
	if err != nil {
		return nil, err
	}
	sizes := o.Sizes.WithDefaults()
	if err := sizes.check(); err != nil {
		return nil, err
	}
	if err := sizes.apply(spec); err != nil {
		return nil, err
	}
	return spec, setKnobs(spec, o)
}

func (o *Objects) load(spec *ebpf.CollectionSpec, replace map[string]*ebpf.Map) error {
	if err := fitReplacements(spec, replace); err != nil {
		return err
	}
	if err := setDerived(spec); err != nil {
		return err
	}
	err := spec.LoadAndAssign(&o.NearlbObjects, &ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return explain("load the BPF programs", err)
	}
	if err := initialise(o.Config); err != nil {
		return errors.Join(err, o.Close())
	}
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
func (o *Objects) Close() error { return o.NearlbObjects.Close() }

// NewMaps makes private tables without programs: for tests and for whoever only publishes and reads.
func NewMaps(sizes Sizes) (*NearlbMaps, error) {
	spec, err := configured(Options{Sizes: sizes})
	if err != nil {
		return nil, err
	}
	for _, m := range spec.Maps {
		if perLoad(m) {
			m.Contents = nil
		}
	}
	var tables NearlbMaps
	if err := spec.LoadAndAssign(&tables, nil); err != nil {
		return nil, explain("make tables", err)
	}
	if err := initialise(tables.Config); err != nil {
		return nil, errors.Join(err, tables.Close())
	}
	return &tables, nil
}
