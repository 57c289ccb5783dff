// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Former are the tables of another generation: of another layout, or left by an upgrade that has not come to its end.
type Former struct {
	generation
	tables map[string]*formerTable
	carry  []*ebpf.Program // see CarrySockets: one for each of socketLists

	unprepared error // why another process could not load carry
}

// formerTable is a table of another layout, with the way to this one's.
type formerTable struct {
	table      *ebpf.Map
	key, value *conversion
	unreadable error
	last       []byte // see Changes
}

// Layout is "v2".
func (f *Former) Layout() string { return f.name() }

// Other tells whether the layout is another than this nearlb's; else the tables are smaller ones.
func (f *Former) Other() bool { return f.layout != SchemaVersion }

// openFormer opens what there is. What cannot be read is found out by who reads it. The error says that the process or the machine
// lacks memory or descriptors: the tables may be read at another time.
func openFormer(g generation, spec *ebpf.CollectionSpec) (*Former, error) {
	f := &Former{generation: g, tables: map[string]*formerTable{}}
	described, describedErr := g.types()
	if exhausted(describedErr) {
		return nil, explain("open tables of layout "+g.name(), describedErr)
	}
	for name, want := range spec.Maps {
		if perLoad(want) || internal(name) || want.Key == nil || want.Value == nil {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(g.maps(), name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		t := &formerTable{table: m, unreadable: errors.Join(err, describedErr)}
		f.tables[name] = t
		if t.unreadable == nil {
			t.unreadable = t.convertTo(want, described, name)
		}
		if exhausted(t.unreadable) {
			f.close()
			return nil, explain("open table "+name+" of layout "+g.name(), t.unreadable)
		}
	}
	return f, nil
}

// convertTo finds the way to this layout's table.
func (t *formerTable) convertTo(want *ebpf.MapSpec, described *btf.Spec, name string) error {
	key, value, err := typesOf(described, name, t.table)
	if err != nil {
		return err
	}
	if t.key, err = newConversion(key, want.Key); err != nil {
		return err
	}
	if t.value, err = newConversion(value, want.Value); err != nil {
		return err
	}
	return t.check(want)
}

// check refuses tables of another kind, and descriptions that are not of this table.
func (t *formerTable) check(want *ebpf.MapSpec) error {
	if t.table.Type() != want.Type {
		return fmt.Errorf("it is a table of type %v, %v in this layout", t.table.Type(), want.Type)
	}
	if int(t.table.KeySize()) != t.key.from || int(t.table.ValueSize()) != t.value.from {
		return fmt.Errorf("keys of %d and values of %d bytes are not as described", t.table.KeySize(), t.table.ValueSize())
	}
	return nil
}

func (f *Former) close() {
	f.closeCarry()
	for _, t := range f.tables {
		if t.table != nil {
			t.table.Close()
		}
	}
}

// size is how many entries this layout's table needs for all of the other's; 0: not known.
func (f *Former) size(name string) uint32 {
	t := f.tables[name]
	if t == nil || t.unreadable != nil {
		return 0
	}
	if name == NearlbMapSlots {
		return uint32(uint64(t.table.MaxEntries()) * uint64(t.value.from) / uint64(t.value.to))
	}
	return t.table.MaxEntries()
}

// Needs is an error when a table's values lack one of these fields, or cannot be read at all.
func (f *Former) Needs(table string, fields ...string) error {
	t := f.tables[table]
	switch {
	case t == nil:
		return fmt.Errorf("carry table %s of layout %s: there is none", table, f.Layout())
	case t.unreadable != nil:
		return fmt.Errorf("carry table %s of layout %s: %w", table, f.Layout(), t.unreadable)
	}
	for _, field := range fields {
		if slices.ContainsFunc(t.value.lacks, func(l string) bool { return l == field || strings.HasPrefix(field, l+".") }) {
			return fmt.Errorf("carry table %s of layout %s: it has no %s", table, f.Layout(), field)
		}
	}
	return nil
}

// Rows walks a table and gives keys and values in this layout; values that are all zero and those that do not fit are left
// out. K and V are the generated types. A table that is not there has no rows.
func Rows[K, V any](f *Former, table string, yield func(K, V) error) error {
	t := f.tables[table]
	if t == nil {
		return nil
	}
	var key K
	var value V
	if t.unreadable == nil && (int(unsafe.Sizeof(key)) != t.key.to || int(unsafe.Sizeof(value)) != t.value.to) {
		return fmt.Errorf("carry table %s: rows are not of %T and %T", table, key, value)
	}
	err := t.each(func(k, v []byte, _ int) error {
		var zeroK K
		var zeroV V
		key, value = zeroK, zeroV
		if t.key.convert(bytesOf(&key), k) != nil || t.value.convert(bytesOf(&value), v) != nil {
			return nil
		}
		return yield(key, value)
	})
	if err != nil {
		return fmt.Errorf("carry table %s of layout %s: %w", table, f.Layout(), err)
	}
	return nil
}

// Changes is Rows for elements of an array that programs write to, without those that are as they were at the last call. An
// element that changed while it was read is read again.
func Changes[V any](f *Former, table string, yield func(index uint32, value V) error) error {
	t := f.tables[table]
	if t == nil {
		return nil
	}
	if t.unreadable == nil && t.last == nil {
		t.last = make([]byte, int(t.table.MaxEntries())*t.value.from)
	}
	err := t.each(func(k, v []byte, _ int) error {
		var index uint32
		var value V
		if t.key.convert(bytesOf(&index), k) != nil || index >= t.table.MaxEntries() {
			return nil
		}
		last := t.last[int(index)*t.value.from:][:t.value.from]
		if bytes.Equal(last, v) {
			return nil
		}
		v = t.steady(index, v)
		copy(last, v)
		if t.value.convert(bytesOf(&value), v) != nil {
			return nil
		}
		return yield(index, value)
	})
	if err != nil {
		return fmt.Errorf("carry table %s of layout %s: %w", table, f.Layout(), err)
	}
	return nil
}

// steady reads an element until it is the same twice.
func (t *formerTable) steady(index uint32, v []byte) []byte {
	const attempts = 8
	for range attempts {
		again, err := t.table.LookupBytes(index)
		if err != nil || bytes.Equal(again, v) {
			break
		}
		v = again
	}
	return v
}

// CounterRows is Rows for counters of every processor.
func CounterRows[V any](f *Former, table string, yield func(index uint32, values []V) error) error {
	t := f.tables[table]
	if t == nil {
		return nil
	}
	err := t.each(func(k, v []byte, processors int) error {
		var index uint32
		values := make([]V, processors)
		if err := t.key.convert(bytesOf(&index), k); err != nil {
			return nil
		}
		for i := range values {
			if t.value.convert(bytesOf(&values[i]), v[i*t.value.from:][:t.value.from]) != nil {
				return nil
			}
		}
		return yield(index, values)
	})
	if err != nil {
		return fmt.Errorf("carry table %s of layout %s: %w", table, f.Layout(), err)
	}
	return nil
}

// Words gives the values of a table of 32-bit numbers one after the other, however many are in an element.
func (f *Former) Words(table string, yield func(index, value uint32)) error {
	t := f.tables[table]
	if t == nil {
		return nil
	}
	err := t.each(func(k, v []byte, _ int) error {
		first := *(*uint32)(unsafe.Pointer(&k[0])) * uint32(len(v)/4)
		for i, word := range unsafe.Slice((*uint32)(unsafe.Pointer(&v[0])), len(v)/4) {
			yield(first+uint32(i), word)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("carry table %s of layout %s: %w", table, f.Layout(), err)
	}
	return nil
}

func bytesOf[T any](value *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(value)), unsafe.Sizeof(*value))
}

// batch is how many entries are read at once.
const batch = 4096

// each walks the table as the other layout has it. processors is the number of values in v, one after the other.
func (t *formerTable) each(yield func(key, value []byte, processors int) error) error {
	if t.unreadable != nil {
		return t.unreadable
	}
	if t.table.Type() == ebpf.LPMTrie {
		return t.walk(yield)
	}
	processors, err := t.processors()
	if err != nil {
		return err
	}
	count := int(min(t.table.MaxEntries(), batch))
	keys, keyBytes := buffer(count, int(t.table.KeySize()))
	values, valueBytes := buffer(count*processors, int(t.table.ValueSize()))
	zero := make([]byte, processors*int(t.table.ValueSize()))
	var cursor ebpf.MapBatchCursor
	for {
		n, err := t.table.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			key, value := keyBytes[i*int(t.table.KeySize()):][:t.table.KeySize()], valueBytes[i*len(zero):][:len(zero)]
			if string(value) == string(zero) {
				continue
			}
			if err := yield(key, value, processors); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

func (t *formerTable) processors() (int, error) {
	switch t.table.Type() {
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		return ebpf.PossibleCPU()
	}
	return 1, nil
}

// walk goes key by key, where the kernel has no batches.
func (t *formerTable) walk(yield func(key, value []byte, processors int) error) error {
	var key, value []byte
	entries := t.table.Iterate()
	for entries.Next(&key, &value) {
		if err := yield(key, value, 1); err != nil {
			return err
		}
	}
	return entries.Err()
}

// buffer is a slice of count arrays of size bytes, as the library wants it, and its bytes.
func buffer(count, size int) (elements any, memory []byte) {
	slice := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), count, count)
	return slice.Interface(), unsafe.Slice((*byte)(slice.UnsafePointer()), count*size)
}

// forbidden tells a missing permission from a table that is of no use.
func forbidden(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) }

// refusedByKernel tells an error number of the kernel from a finding about what was opened.
func refusedByKernel(err error) bool {
	var number unix.Errno
	return errors.As(err, &number)
}

// exhausted says that memory or descriptors were lacking, or that the call was interrupted.
func exhausted(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.EINTR}, func(e error) bool { return errors.Is(err, e) })
}
