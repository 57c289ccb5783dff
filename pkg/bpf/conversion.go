// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// A conversion turns a value of one layout into one of another by the names of fields: sizes, offsets and order may differ,
// fields that the other does not have are left out, and those that it does not know are zero. Therefore a field whose meaning
// changes gets another name (bpf/lib/types.h), and zero is to mean "nothing of the kind".
type conversion struct {
	from, to int // sizes
	moves    []move
	lacks    []string // fields of the new layout that the old one does not have: "sides.tiers.count"
}

// move copies bytes. rest is what follows them in a number that gets narrower: it must be zero.
type move struct{ from, to, size, rest int }

var errTooWide = errors.New("a number does not fit the other layout")

// convert writes a value; to must be zero.
func (c *conversion) convert(to, from []byte) error {
	for _, m := range c.moves {
		copy(to[m.to:m.to+m.size], from[m.from:m.from+m.size])
		for _, b := range from[m.from+m.size : m.from+m.size+m.rest] {
			if b != 0 {
				return errTooWide
			}
		}
	}
	return nil
}

// newConversion is an error for what has no field in common, or fields of other kinds under one name.
func newConversion(from, to btf.Type) (*conversion, error) {
	c := &conversion{}
	var err error
	if c.from, err = btf.Sizeof(from); err == nil {
		c.to, err = btf.Sizeof(to)
	}
	if err != nil {
		return nil, fmt.Errorf("read layout: %w", err)
	}
	if err := c.add(from, to, 0, 0, ""); err != nil {
		return nil, err
	}
	if len(c.moves) == 0 {
		return nil, fmt.Errorf("%v has nothing of %v", from, to)
	}
	c.join()
	return c, nil
}

func (c *conversion) add(from, to btf.Type, at, dest int, path string) error {
	from, to = btf.UnderlyingType(from), btf.UnderlyingType(to)
	switch t := to.(type) {
	case *btf.Struct:
		if f, ok := from.(*btf.Struct); ok {
			return c.fields(f.Members, t.Members, at, dest, path)
		}
	case *btf.Union: // the same bytes under several names: those of the first are enough
		if f, ok := from.(*btf.Union); ok && f.Size == t.Size {
			c.moves = append(c.moves, move{at, dest, int(t.Size), 0})
			return nil
		}
	case *btf.Array:
		if f, ok := from.(*btf.Array); ok {
			return c.elements(f, t, at, dest, path)
		}
	case *btf.Int, *btf.Enum:
		return c.number(from, to, at, dest, path)
	}
	return fmt.Errorf("field %q is %v in one layout and %v in the other", path, from, to)
}

func (c *conversion) fields(from, to []btf.Member, at, dest int, path string) error {
	for _, t := range to {
		name := strings.TrimPrefix(path+"."+t.Name, ".")
		if strings.HasPrefix(t.Name, "pad") {
			continue
		}
		i := slices.IndexFunc(from, func(f btf.Member) bool { return f.Name == t.Name })
		if i < 0 {
			c.lacks = append(c.lacks, name)
			continue
		}
		if from[i].BitfieldSize != 0 || t.BitfieldSize != 0 {
			return fmt.Errorf("field %q is of single bits", name)
		}
		if err := c.add(from[i].Type, t.Type, at+int(from[i].Offset.Bytes()), dest+int(t.Offset.Bytes()), name); err != nil {
			return err
		}
	}
	return nil
}

func (c *conversion) elements(from, to *btf.Array, at, dest int, path string) error {
	each, err := btf.Sizeof(from.Type)
	if err != nil {
		return err
	}
	wanted, err := btf.Sizeof(to.Type)
	if err != nil {
		return err
	}
	for i := range int(min(from.Nelems, to.Nelems)) {
		if err := c.add(from.Type, to.Type, at+i*each, dest+i*wanted, path); err != nil {
			return err
		}
	}
	return nil
}

// number relies on little-endian machines: all that the objects are made for.
func (c *conversion) number(from, to btf.Type, at, dest int, path string) error {
	switch from.(type) {
	case *btf.Int, *btf.Enum:
	default:
		return fmt.Errorf("field %q is a number in one layout and %v in the other", path, from)
	}
	have, err := btf.Sizeof(from)
	if err != nil {
		return err
	}
	want, err := btf.Sizeof(to)
	if err != nil {
		return err
	}
	c.moves = append(c.moves, move{at, dest, min(have, want), max(have-want, 0)})
	return nil
}

// join makes one move of neighbours.
func (c *conversion) join() {
	joined := c.moves[:1]
	for _, m := range c.moves[1:] {
		last := &joined[len(joined)-1]
		if last.rest == 0 && last.from+last.size == m.from && last.to+last.size == m.to {
			last.size, last.rest = last.size+m.size, m.rest
			continue
		}
		joined = append(joined, m)
	}
	c.moves = joined
}
