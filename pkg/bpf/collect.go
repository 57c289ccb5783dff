// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sync/errgroup"
)

// atOnceMost is how many programs are loaded at once at the most: the verifier takes some ten megabytes for each of the large ones.
const atOnceMost = 4

// collect makes the tables that have no replacement, loads the programs over them, several at once, and puts those that are reached by
// tail call where these are looked up. The verifier has one processor work for each program, which is most of the time that a load takes.
func collect(spec *ebpf.CollectionSpec, replace map[string]*ebpf.Map, options ebpf.CollectionOptions) (_ *ebpf.Collection, err error) {
	tables := withoutCalls(spec)
	all, err := ebpf.NewCollectionWithOptions(&tables, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			all.Close()
		}
	}()
	names := slices.SortedFunc(maps.Keys(spec.Programs), func(a, b string) int { // what takes longest first
		return cmp.Or(cmp.Compare(len(spec.Programs[b].Instructions), len(spec.Programs[a].Instructions)), cmp.Compare(a, b))
	})
	loaded := make([]*ebpf.Program, len(names))
	options.MapReplacements = all.Maps
	atOnce := min(runtime.GOMAXPROCS(0), atOnceMost)
	types, err := typesForEach(atOnce, spec, options.Cache)
	if err != nil {
		return nil, err
	}
	group := errgroup.Group{}
	group.SetLimit(atOnce)
	for i, name := range names {
		group.Go(func() (err error) {
			with := options
			with.Cache = <-types
			defer func() { types <- with.Cache }()
			loaded[i], err = collectOne(spec, name, with)
			return err
		})
	}
	err = group.Wait()
	for i, p := range loaded {
		if p != nil {
			all.Programs[names[i]] = p
		}
	}
	if err == nil {
		err = putCalls(spec, all)
	}
	return all, err
}

// typesForEach are the kernel's types for so many loads at once: the same for all where the kernel itself has every function of its own that
// programs call. A function of a module brings that module's types, and these are decoded with the kernel's, for which the library (cilium/ebpf
// 0.22) takes no lock: each load has types of its own then.
func typesForEach(loads int, spec *ebpf.CollectionSpec, shared *btf.Cache) (chan *btf.Cache, error) {
	own, err := callsModules(spec, shared)
	if err != nil {
		return nil, err
	}
	types := make(chan *btf.Cache, loads)
	for types <- shared; len(types) < loads; {
		if own {
			types <- btf.NewCache()
		} else {
			types <- shared
		}
	}
	return types, nil
}

// callsModules tells whether programs call functions that the kernel itself does not have: modules are searched for these.
func callsModules(spec *ebpf.CollectionSpec, types *btf.Cache) (bool, error) {
	kernel, err := types.Kernel()
	if err != nil {
		return false, explain("read the kernel's types", err)
	}
	known := map[string]bool{}
	for _, program := range spec.Programs {
		for _, ins := range program.Instructions {
			name := ins.Reference()
			if !ins.IsKfuncCall() || known[name] {
				continue
			}
			var function *btf.Func
			if kernel.TypeByName(name, &function) != nil {
				return true, nil
			}
			known[name] = true
		}
	}
	return false, nil
}

// withoutCalls is the object without programs, and so without what its tables of tail calls contain.
func withoutCalls(spec *ebpf.CollectionSpec) ebpf.CollectionSpec {
	tables := *spec
	tables.Programs, tables.Maps = nil, maps.Clone(spec.Maps)
	for name, m := range tables.Maps {
		if perLoad(m) {
			m = m.Copy()
			m.Contents = nil
			tables.Maps[name] = m
		}
	}
	return tables
}

// collectOne loads one program over tables that are there.
func collectOne(spec *ebpf.CollectionSpec, name string, options ebpf.CollectionOptions) (*ebpf.Program, error) {
	one := withoutCalls(spec)
	program := *spec.Programs[name]
	program.Instructions = withSlack(program.Instructions)
	one.Programs, one.Variables = map[string]*ebpf.ProgramSpec{name: &program}, nil
	collection, err := ebpf.NewCollectionWithOptions(&one, options)
	if err != nil {
		return nil, err
	}
	defer collection.Close()
	return collection.DetachProgram(name), nil
}

// putCalls fills the tables of tail calls of a load.
func putCalls(spec *ebpf.CollectionSpec, all *ebpf.Collection) error {
	for name, m := range spec.Maps {
		if !perLoad(m) {
			continue
		}
		for _, entry := range m.Contents {
			p := all.Programs[fmt.Sprint(entry.Value)]
			if p == nil {
				return fmt.Errorf("fill table %s: there is no program %v", name, entry.Value)
			}
			if err := all.Maps[name].Put(entry.Key, p); err != nil {
				return fmt.Errorf("fill table %s: %w", name, err)
			}
		}
	}
	return nil
}
