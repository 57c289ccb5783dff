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
func collect(spec *ebpf.CollectionSpec, replace map[string]*ebpf.Map, options ebpf.ProgramOptions) (_ *ebpf.Collection, err error) {
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
	with := ebpf.CollectionOptions{MapReplacements: all.Maps, Programs: options, Cache: btf.NewCache()} // the kernel's types are read once
	group := errgroup.Group{}
	group.SetLimit(min(runtime.GOMAXPROCS(0), atOnceMost))
	for i, name := range names {
		group.Go(func() (err error) {
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
	one.Programs, one.Variables = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}, nil
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
