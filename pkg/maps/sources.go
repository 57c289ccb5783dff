// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"fmt"
	mathbits "math/bits"
	"net/netip"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// sourceLimit is SOURCES_MAX of bpf/lib/types.h. Index 0 is nobody's.
const sourceLimit = len(bpf.NearlbSettings{}.Sources)

// SourceLimit is how many addresses SNAT may use.
const SourceLimit = sourceLimit - 1

// sources says which index an address that SNAT uses has. A connection names the index, so an address keeps it, over
// restarts too, and an index goes to another address only when no connection names it any more.
type sources struct {
	addresses [sourceLimit]bpf.NearlbAddress // zero: free
	unused    map[uint8]*staleMark           // nobody asks for these any more
}

// restoreSources takes over what the programs use. Nothing of it is asked for before the next Configure.
func restoreSources(settings *array, now time.Time) *sources {
	s := &sources{read[bpf.NearlbSettings](settings, 0).Sources, map[uint8]*staleMark{}}
	s.addresses[0] = bpf.NearlbAddress{}
	s.want(nil, now)
	return s
}

// want gives every wanted address an index, the first ones first, and marks what is not wanted. It gives those without room.
func (s *sources) want(wanted []netip.Addr, now time.Time) (left []netip.Addr) {
	asked := map[uint8]bool{}
	for _, a := range wanted {
		index := s.index(a)
		if index == 0 {
			index = s.take(a)
		}
		if index == 0 {
			left = append(left, a)
		}
		asked[index] = true
	}
	for i := 1; i < sourceLimit; i++ {
		index := uint8(i)
		switch {
		case asked[index]:
			delete(s.unused, index)
		case s.addresses[i] != bpf.NearlbAddress{} && s.unused[index] == nil:
			s.unused[index] = &staleMark{since: now}
		}
	}
	return left
}

// index is 0 for an address without one.
func (s *sources) index(a netip.Addr) uint8 {
	if !a.IsValid() {
		return 0
	}
	wanted := address16(a)
	for i := 1; i < sourceLimit; i++ {
		if s.addresses[i] == wanted {
			return uint8(i)
		}
	}
	return 0
}

func (s *sources) take(a netip.Addr) uint8 {
	for i := 1; i < sourceLimit; i++ {
		if s.addresses[i] == (bpf.NearlbAddress{}) {
			s.addresses[i] = address16(a)
			return uint8(i)
		}
	}
	return 0
}

// address is zero for an index without one.
func (s *sources) address(index uint8) netip.Addr {
	if int(index) >= sourceLimit {
		return netip.Addr{}
	}
	return optionalAddr(s.addresses[index])
}

// bits are those of addresses of either family in what the programs know of a device. An address without an index has none.
func (s *sources) bits(of []netip.Addr) (four, six uint64) {
	for _, a := range of {
		bit := uint64(1) << s.index(a) &^ 1
		if a.Is4() {
			four |= bit
		} else {
			six |= bit
		}
	}
	return four, six
}

// listed are the addresses of bits.
func (s *sources) listed(bits uint64) (all []netip.Addr) {
	for ; bits != 0; bits &= bits - 1 {
		if a := s.address(uint8(mathbits.TrailingZeros64(bits))); a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

// inUse lists the addresses, by index.
func (s *sources) inUse() []netip.Addr {
	all := []netip.Addr{}
	for _, a := range s.addresses {
		if a != (bpf.NearlbAddress{}) {
			all = append(all, addrOf(a))
		}
	}
	return all
}

// freeSource makes an index free for another address.
func (t *Tables) freeSource(index uint8) {
	t.sources.addresses[index] = bpf.NearlbAddress{}
	delete(t.sources.unused, index)
	t.writeSources()
}

// writeSources tells the programs of the addresses.
func (t *Tables) writeSources() {
	s := read[bpf.NearlbSettings](t.store.settings, 0)
	t.sources.fill(&s)
	write(t.store.settings, 0, s, sourceWords()...)
}

// fill puts the addresses into settings, with the bits that most other addresses lack.
func (s *sources) fill(to *bpf.NearlbSettings) {
	to.Sources, to.SourceBits = s.addresses, [len(to.SourceBits)]uint64{}
	for _, a := range s.addresses {
		if a == (bpf.NearlbAddress{}) {
			continue
		}
		hash := sourceHash(a)
		for _, bit := range []uint8{uint8(hash >> 8), uint8(hash)} {
			to.SourceBits[bit/64] |= 1 << (bit % 64)
		}
	}
}

// sourceHash is source_hash of bpf/lib/settings.h.
func sourceHash(a bpf.NearlbAddress) uint16 {
	low, high := binary.LittleEndian.Uint64(a.Bytes[:8]), binary.LittleEndian.Uint64(a.Bytes[8:])
	return uint16((low*0x9e3779b97f4a7c15 ^ high) * 0xbf58476d1ce4e5b9 >> 48)
}

// allSources are the addresses that a configuration needs, the node's own before those that can be done without.
func (c *Config) allSources() []netip.Addr {
	all := []netip.Addr{c.Node4, c.Node6}
	for _, ifindex := range sortedKeys(c.Devices) {
		all = append(all, c.Devices[ifindex].Source4, c.Devices[ifindex].Source6)
	}
	return valid(append(all, c.Sources...))
}

// sourcesFull names the addresses without an index.
func sourcesFull(left []netip.Addr) error {
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("configure tables: no room for %v among the sources of SNAT, at most %d are possible", left, sourceLimit-1)
}
