// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
)

func TestTablesConstantsAndTypesAreTheSameWithoutThePrograms(t *testing.T) {
	whole, err := objectSpec()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := tablesSpec()
	if err != nil {
		t.Fatal(err)
	}
	if len(tables.Programs) > 0 || len(whole.Programs) == 0 {
		t.Errorf("%d and %d programs, want none in the first", len(tables.Programs), len(whole.Programs))
	}
	if diff := cmp.Diff(describeTables(whole), describeTables(tables)); diff != "" {
		t.Errorf("from the whole object to that without programs:\n%s", diff)
	}
	if diff := cmp.Diff(describeConstants(whole), describeConstants(tables)); diff != "" {
		t.Errorf("from the whole object to that without programs:\n%s", diff)
	}
	var types [2][]byte
	for i, spec := range []*ebpf.CollectionSpec{whole, tables} {
		if types[i], err = description(spec); err != nil {
			t.Fatal(err)
		}
	}
	if len(types[0]) == 0 || !bytes.Equal(types[0], types[1]) {
		t.Errorf("types of tables take %d bytes in the whole object, and are others in that without programs", len(types[0]))
	}
}

// describeTables lists what the kernel is told of tables, and what they hold but for programs.
func describeTables(spec *ebpf.CollectionSpec) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		contents := m.Contents
		if perLoad(m) {
			contents = nil
		}
		lines = append(lines, fmt.Sprintf("%s %v %d %d %d %x %v %v", name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags, m.Pinning, contents))
	}
	return lines
}

func describeConstants(spec *ebpf.CollectionSpec) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(spec.Variables)) {
		v := spec.Variables[name]
		lines = append(lines, fmt.Sprintf("%s %s %v %v %v", v.SectionName, name, v.Value, v.Type, v.Constant()))
	}
	return lines
}
