// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// A generation describes its own tables: one more pinned table, "layout", has BTF with a struct for each of them, whose
// members are its key and value. The kernel has the same with each table, but shows it to CAP_SYS_ADMIN alone.

// tableTypes is the name of the struct that describes a table.
func tableTypes(table string) string { return "table_" + table }

func (g generation) layoutPin() string { return filepath.Join(g.path, "layout") }

// describe pins the description, in the place of that of an earlier start: fields may have been named in what was padding, and
// tables added, since.
func (g generation) describe(spec *ebpf.CollectionSpec) error {
	text, err := description(spec)
	if err != nil {
		return fmt.Errorf("describe tables: %w", err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "layout", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(text)), MaxEntries: 1})
	if err != nil {
		return explain("make table layout", err)
	}
	defer m.Close()
	if err := m.Put(uint32(0), text); err != nil {
		return explain("write table layout", err)
	}
	unfinished := g.layoutPin() + "_new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, os.ErrNotExist) { // of a start that was killed
		return fmt.Errorf("pin table layout: %w", err)
	}
	if err := m.Pin(unfinished); err != nil {
		return explain("pin table layout", err)
	}
	if err := os.Rename(unfinished, g.layoutPin()); err != nil {
		return fmt.Errorf("pin table layout: %w", err)
	}
	return nil
}

func description(spec *ebpf.CollectionSpec) ([]byte, error) {
	b, err := btf.NewBuilder(nil, nil)
	if err != nil {
		return nil, err
	}
	names := []string{}
	for name, m := range spec.Maps {
		if !perLoad(m) && !internal(name) && m.Key != nil && m.Value != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		m := spec.Maps[name]
		row := &btf.Struct{Name: tableTypes(name), Members: []btf.Member{{Name: "key", Type: m.Key}, {Name: "value", Type: m.Value}}}
		if err := place(row); err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		if _, err := b.Add(row); err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
	}
	return b.Marshal(nil, btf.KernelMarshalOptions())
}

// place lays the members out one after the other.
func place(s *btf.Struct) error {
	at := 0
	for i := range s.Members {
		size, err := btf.Sizeof(s.Members[i].Type)
		if err != nil {
			return err
		}
		s.Members[i].Offset = btf.Bits(8 * at)
		at += (size + 7) / 8 * 8
	}
	s.Size = uint32(at)
	return nil
}

// types reads the description; nil without one: an agent of an earlier version pinned none.
func (g generation) types() (*btf.Spec, error) {
	m, err := ebpf.LoadPinnedMap(g.layoutPin(), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open table layout: %w", err)
	}
	defer m.Close()
	text, err := m.LookupBytes(uint32(0))
	if err != nil || text == nil {
		return nil, errors.Join(errors.New("read table layout"), err)
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read table layout: %w", err)
	}
	return spec, nil
}

// typesOf are the types of a table's keys and values, by the description or else by the kernel's word.
func typesOf(described *btf.Spec, name string, m *ebpf.Map) (key, value btf.Type, err error) {
	if described == nil {
		return kernelTypesOf(m)
	}
	var row *btf.Struct
	if err := described.TypeByName(tableTypes(name), &row); err != nil {
		return nil, nil, fmt.Errorf("read layout of table %s: %w", name, err)
	}
	for _, member := range row.Members {
		if member.Name == "key" {
			key = member.Type
		} else {
			value = member.Type
		}
	}
	return key, value, nil
}

// kernelTypesOf needs CAP_SYS_ADMIN.
func kernelTypesOf(m *ebpf.Map) (key, value btf.Type, err error) {
	handle, err := m.Handle()
	if err != nil {
		return nil, nil, fmt.Errorf("read layout of %v: %w", m, err)
	}
	defer handle.Close()
	spec, err := handle.Spec(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("read layout of %v: %w", m, err)
	}
	keyID, valueID, err := typeIDs(m.FD())
	if err != nil {
		return nil, nil, fmt.Errorf("read layout of %v: %w", m, err)
	}
	if key, err = spec.TypeByID(keyID); err == nil {
		value, err = spec.TypeByID(valueID)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read layout of %v: %w", m, err)
	}
	return key, value, nil
}

// typeIDs asks the kernel what the library does not tell: btf_key_type_id and btf_value_type_id of struct bpf_map_info.
func typeIDs(fd int) (key, value btf.TypeID, err error) {
	const (
		infoSize           = 88
		keyType, valueType = 68, 72
	)
	info := make([]byte, infoSize)
	request := struct {
		fd, length uint32
		info       unsafe.Pointer
	}{uint32(fd), infoSize, unsafe.Pointer(&info[0])}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&request)), unsafe.Sizeof(request))
	runtime.KeepAlive(info)
	if errno != 0 {
		return 0, 0, errno
	}
	return btf.TypeID(binary.NativeEndian.Uint32(info[keyType:])), btf.TypeID(binary.NativeEndian.Uint32(info[valueType:])), nil
}
