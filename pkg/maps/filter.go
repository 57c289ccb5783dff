// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// filterWords is FILTER_WORDS of bpf/lib/types.h.
const filterWords = 1 << 15

// endpointHash is endpoint_hash of bpf/lib/settings.h: the place in known_addresses of an address and a port, in network byte order.
func endpointHash(a bpf.NearlbAddress, port uint16, seed uint64) uint32 {
	low, high := binary.LittleEndian.Uint64(a.Bytes[:8]), binary.LittleEndian.Uint64(a.Bytes[8:])
	x := (low^seed)*0x9e3779b97f4a7c15 ^ high ^ uint64(port)
	x ^= x >> 32
	x *= 0xbf58476d1ce4e5b9
	return uint32(x >> (64 - 27))
}

// plane says whose addresses a bit of the filter stands for: the two members of struct known_bits.
type plane uint32

const (
	frontendPlane plane = 0
	backendPlane  plane = 1
)

// known is what the filter has of an address, perhaps with a port: its two bits, which may be one.
type known struct {
	plane plane
	hash  uint32
}

// frontendKnown is how the fast path knows a frontend's packets. Its address alone decides, so that unknown ports
// are seen, too. Not so where the address is the node's own, as a NodePort's is: its port counts, and all else passes.
func (s *store) frontendKnown(key frontendKey, r *recordValue) known {
	if r.Kind == kindOf(lb.KindNodePort) || r.Flags&uint8(bpf.NearlbRecordFlagsRECORD_ON_HOST) != 0 {
		return s.known(frontendPlane, key.Address, key.Port)
	}
	return s.known(frontendPlane, key.Address, 0)
}

func (s *store) backendKnown(a netip.AddrPort) known {
	return s.known(backendPlane, address16(a.Addr()), bits.ReverseBytes16(a.Port()))
}

// exposedKnown is how the programs know a backend that frontends other than ClusterIPs lead to: known_exposed of bpf/lib/settings.h.
func (s *store) exposedKnown(a netip.AddrPort) known {
	return known{backendPlane, endpointHash(address16(a.Addr()), bits.ReverseBytes16(a.Port()), ^s.seed())}
}

// ofBackend is all that the filter has of an entry of the backends table.
func (s *store) ofBackend(row *backendRow) []known {
	all := []known{s.backendKnown(AddrPortOf(*row))}
	if row.ClusterOnly == 0 {
		all = append(all, s.exposedKnown(AddrPortOf(*row)))
	}
	return all
}

// known wants the port in network byte order; 0: whatever the port.
func (s *store) known(p plane, a bpf.NearlbAddress, port uint16) known {
	return known{p, endpointHash(a, port, s.seed())}
}

// seed is that of the hashes: drawn once for these tables and carried over to the next ones.
func (s *store) seed() uint64 {
	const word = int(unsafe.Offsetof(bpf.NearlbSettings{}.Seed) / 4)
	return uint64(s.settings.load(0, word)) | uint64(s.settings.load(0, word+1))<<32
}

// bits are the two: the upper 15 bits of the hash name the word, twice six the bit in it.
func (k known) bits() [2]filterBit {
	word := uint32(k.plane)<<21 | k.hash>>12<<6
	return [2]filterBit{filterBit(word | k.hash>>6&63), filterBit(word | k.hash&63)}
}

// isSet says whether the programs take the address for a known one.
func (k known) isSet(a *array) bool {
	b := k.bits()
	return b[0].isSet(a) && b[1].isSet(a)
}

// put sets both bits and says whether that changed one.
func (k known) put(a *array) bool {
	b := k.bits()
	first, second := b[0].put(a, true), b[1].put(a, true)
	return first || second
}

// filterBit is one bit: its plane above 21 bits of number.
type filterBit uint32

// place finds the bit: element, word in it, mask. Words are little-endian halves of the 64-bit members.
func (b filterBit) place() (element uint32, word int, mask uint32) {
	return uint32(b) & (1<<21 - 1) >> 6, 2*int(b>>21) + int(b>>5&1), 1 << (b & 31)
}

func (b filterBit) isSet(a *array) bool {
	element, word, mask := b.place()
	return a.load(element, word)&mask != 0
}

// put sets or clears the bit and says whether that changed it. As connections are carried over, two write.
func (b filterBit) put(a *array, set bool) bool {
	element, word, mask := b.place()
	at, old := a.word(element, word), uint32(0)
	if set {
		old = ^atomic.OrUint32(at, mask)
	} else {
		old = atomic.AndUint32(at, ^mask)
	}
	changed := old&mask != 0
	if changed {
		a.written()
	}
	return changed
}

// setBits walks the bits that are set; few are, so whole words are skipped.
func setBits(a *array) iter.Seq[filterBit] {
	return func(yield func(filterBit) bool) {
		for element := range a.size {
			for word := range 4 {
				for rest := a.load(element, word); rest != 0; rest &= rest - 1 {
					b := uint32(word/2)<<21 | element<<6 | uint32(word&1)<<5 | uint32(bits.TrailingZeros32(rest))
					if !yield(filterBit(b)) {
						return
					}
				}
			}
		}
	}
}
