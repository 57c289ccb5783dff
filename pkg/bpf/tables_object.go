// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// withoutPrograms is an object in which a parser finds tables, constants and types alone: sections with instructions are empty, those that
// relocate have no type, and what says which line an instruction is of has no name.
func withoutPrograms(object []byte) ([]byte, error) {
	file, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	var header elf.Header64
	if _, err := binary.Decode(object, file.ByteOrder, &header); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	object = bytes.Clone(object)
	for i, s := range file.Sections {
		place := object[header.Shoff+uint64(i)*uint64(header.Shentsize):]
		var section elf.Section64
		if _, err := binary.Decode(place, file.ByteOrder, &section); err != nil {
			return nil, fmt.Errorf("read the header of section %s: %w", s.Name, err)
		}
		switch {
		case s.Flags&elf.SHF_EXECINSTR != 0:
			section.Size = 0
		case s.Type == elf.SHT_REL:
			section.Type = uint32(elf.SHT_NULL)
		case s.Name == ".BTF.ext":
			section.Name = 0
		}
		if _, err := binary.Encode(place, file.ByteOrder, &section); err != nil {
			return nil, fmt.Errorf("write the header of section %s: %w", s.Name, err)
		}
	}
	return object, nil
}
