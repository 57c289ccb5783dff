// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
)

// index says which entries have an address, and whether any has one below a prefix. It is a sorted list in blocks of four kilobytes: 20
// bytes for each address of an entry, and room for up to as many again. To find, add or remove one takes the logarithm of how many there
// are, and what is moved within a block. The zero value is empty.
type index struct{ blocks [][]owned }

// owned is an address that an entry has.
type owned struct {
	address [16]byte // IPv4 as ::ffff:a.b.c.d
	entry   uint32   // its number
}

// blockSize is how many a block has room for.
const blockSize = 204

func (o owned) compare(p owned) int {
	return cmp.Or(bytes.Compare(o.address[:], p.address[:]), cmp.Compare(o.entry, p.entry))
}

// find is the place of the first that does not come before o; a block behind the last one: there is none.
func (x *index) find(o owned) (block, at int, found bool) {
	block, _ = slices.BinarySearchFunc(x.blocks, o, func(b []owned, o owned) int { return b[len(b)-1].compare(o) })
	if block < len(x.blocks) {
		at, found = slices.BinarySearchFunc(x.blocks[block], o, owned.compare)
	}
	return block, at, found
}

func (x *index) add(o owned) {
	block, at, found := x.find(o)
	if found {
		return
	}
	last := len(x.blocks) - 1
	switch {
	case block <= last && len(x.blocks[block]) == blockSize:
		block, at = x.split(block, at)
	case block > last && last >= 0 && len(x.blocks[last]) < blockSize:
		block, at = last, len(x.blocks[last])
	case block > last:
		x.blocks = append(x.blocks, make([]owned, 0, blockSize))
	}
	x.blocks[block] = slices.Insert(x.blocks[block], at, o)
}

// split halves a full block, and says where the place at is now.
func (x *index) split(block, at int) (int, int) {
	const half = blockSize / 2
	full := x.blocks[block]
	x.blocks = slices.Insert(x.blocks, block+1, append(make([]owned, 0, blockSize), full[half:]...))
	x.blocks[block] = full[:half]
	if at > half {
		return block + 1, at - half
	}
	return block, at
}

func (x *index) remove(o owned) {
	block, at, found := x.find(o)
	if !found {
		return
	}
	left := slices.Delete(x.blocks[block], at, at+1)
	x.blocks[block] = left
	switch {
	case len(left) == 0:
		x.blocks = slices.Delete(x.blocks, block, block+1)
	case block+1 < len(x.blocks) && len(left)+len(x.blocks[block+1]) <= blockSize/2:
		x.blocks[block] = append(left, x.blocks[block+1]...)
		x.blocks = slices.Delete(x.blocks, block+1, block+2)
	}
}

// replace puts the addresses of an entry in the place of those that it had; both are sorted.
func (x *index) replace(entry uint32, before, after [][16]byte) {
	for _, a := range without(before, after) {
		x.remove(owned{a, entry})
	}
	for _, a := range without(after, before) {
		x.add(owned{a, entry})
	}
}

// without are those of a that b has not; both are sorted.
func without(a, b [][16]byte) (out [][16]byte) {
	for _, address := range a {
		if _, both := slices.BinarySearchFunc(b, address, compareAddresses); !both {
			out = append(out, address)
		}
	}
	return out
}

func compareAddresses(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }

// sorted are addresses in order, each once.
func sorted(all [][16]byte) [][16]byte {
	slices.SortFunc(all, compareAddresses)
	return slices.Compact(all)
}

// owners appends the entries that have an address.
func (x *index) owners(entries []uint32, a netip.Addr) []uint32 {
	address := a.As16()
	block, at, _ := x.find(owned{address: address})
	for ; block < len(x.blocks); block, at = block+1, 0 {
		for _, o := range x.blocks[block][at:] {
			if o.address != address {
				return entries
			}
			entries = append(entries, o.entry)
		}
	}
	return entries
}

// Where addresses of IPv4 are among those of IPv6, and the first behind them.
var (
	mapped       = netip.MustParseAddr("::ffff:0:0")
	behindMapped = netip.MustParseAddr("::1:0:0:0")
)

// below tells whether any entry has an address below a prefix.
func (x *index) below(p netip.Prefix) bool {
	has := func(from netip.Addr) bool {
		block, at, _ := x.find(owned{address: from.As16()})
		return block < len(x.blocks) && p.Contains(netip.AddrFrom16(x.blocks[block][at].address).Unmap())
	}
	return has(p.Addr()) || p.Contains(mapped) && has(behindMapped)
}
