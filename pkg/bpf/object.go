// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// parsed is the embedded object, parsed once; users copy it.
var parsed = sync.OnceValues(parse)

func parse() (*ebpf.CollectionSpec, error) {
	spec, err := described(LoadNearlb())
	if err == nil {
		direct(spec)
	}
	return spec, err
}

// parsedTables is the same without programs.
var parsedTables = sync.OnceValues(func() (*ebpf.CollectionSpec, error) {
	object, err := withoutPrograms(_NearlbBytes)
	if err != nil {
		return nil, err
	}
	return described(ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object)))
})

// described gives the fields of flows the names that other agents know them by.
func described(spec *ebpf.CollectionSpec, err error) (*ebpf.CollectionSpec, error) {
	if err != nil {
		return nil, err
	}
	flows := spec.Maps[NearlbMapFlows]
	flows.Value = btf.Copy(flows.Value)
	if n := rename(flows.Value, formerNames); n != len(formerNames) {
		return nil, fmt.Errorf("describe table flows: %d of %d fields with former names are there", n, len(formerNames))
	}
	return spec, nil
}

// formerNames are those that fields of flows have in the table's description, by which agents of other layouts carry connections over
// (conversion): names that the programs have changed since.
var formerNames = map[string]string{"key_port": "port", "twin_port": "other_port"}

// rename gives fields of a type other names, and tells how many.
func rename(t btf.Type, names map[string]string) int {
	renamed := 0
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Array:
		return rename(t.Type, names)
	case *btf.Struct:
		for i := range t.Members {
			if name, ok := names[t.Members[i].Name]; ok {
				t.Members[i].Name = name
				renamed++
			}
			renamed += rename(t.Members[i].Type, names)
		}
	}
	return renamed
}

// objectSpec is the embedded object, for the caller to change: a copy of what was parsed, where that is kept.
func objectSpec() (*ebpf.CollectionSpec, error) {
	seldom := transient.Load()
	read := parsed
	if seldom {
		read = parse
	}
	spec, err := read()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the embedded BPF object: %w", err)
	case seldom:
		return spec, nil
	}
	return spec.Copy(), nil
}

var transient atomic.Bool

// LoadsSeldom has each load of this process parse the programs anew and keep nothing of them, which would be most of the memory of a process
// that loads once and waits for long after.
func LoadsSeldom() { transient.Store(true) }

// tablesSpec is the same for who loads no programs: it has the tables, constants and types, and is parsed in a tenth of the time.
func tablesSpec() (*ebpf.CollectionSpec, error) {
	spec, err := parsedTables()
	if err != nil {
		return nil, fmt.Errorf("read the embedded BPF object: %w", err)
	}
	return spec.Copy(), nil
}

// ByName lists the tables under their names in bpf/lib/maps.h. Tables that are not open are left out.
func (m *NearlbMaps) ByName() map[string]*ebpf.Map {
	return fields[*ebpf.Map](m)
}

// ByName lists the programs under their names in bpf/nearlb.c.
func (p *NearlbPrograms) ByName() map[string]*ebpf.Program {
	return fields[*ebpf.Program](p)
}

// fields reads the generated struct's members of one type by their tag, so that a new table needs no line here.
func fields[T comparable](object any) map[string]T {
	var none T
	found := map[string]T{}
	value := reflect.ValueOf(object).Elem()
	for i := range value.NumField() {
		name := value.Type().Field(i).Tag.Get("ebpf")
		if member, ok := value.Field(i).Interface().(T); ok && name != "" && member != none {
			found[name] = member
		}
	}
	return found
}

// setFields is the reverse of fields: missing entries stay as they are.
func setFields[T any](object any, from map[string]T) {
	value := reflect.ValueOf(object).Elem()
	for i := range value.NumField() {
		if member, ok := from[value.Type().Field(i).Tag.Get("ebpf")]; ok {
			value.Field(i).Set(reflect.ValueOf(member))
		}
	}
}

// closeAll closes everything and forgets errors: close of a BPF descriptor tells nothing one could act on.
func closeAll[C io.Closer](all map[string]C) {
	for _, c := range all {
		c.Close()
	}
}
