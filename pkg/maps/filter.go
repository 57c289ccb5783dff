// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// filterBits is ADDRESS_FILTER_BITS of bpf/lib/types.h.
const filterBits = 1 << 19

// endpointHash is endpoint_hash of bpf/lib/hash.h: the bit in address_filter of an address and a port, in network byte order.
func endpointHash(a bpf.NearlbAddress, port uint16) uint32 {
	low, high := binary.LittleEndian.Uint64(a.Bytes[:8]), binary.LittleEndian.Uint64(a.Bytes[8:])
	x := (low * 0x9e3779b97f4a7c15) ^ high ^ uint64(port)
	x ^= x >> 32
	x *= 0xbf58476d1ce4e5b9
	return uint32(x >> (64 - 19))
}

// addressHash is address_hash: the bit of an address whatever the port.
func addressHash(a bpf.NearlbAddress) uint32 { return endpointHash(a, 0) }

// plane says whose addresses a bit of the filter stands for: the two members of struct address_bits.
type plane int

const (
	frontendPlane plane = 0
	backendPlane  plane = 1
)

// filterBit names one bit.
type filterBit struct {
	plane plane
	hash  uint32
}

// frontendBit is the bit by which the fast path knows a frontend's packets. Its address alone decides, so that unknown ports
// are seen, too. Not so a NodePort's, which is the node's own address: its port counts, and all else passes.
func frontendBit(key frontendKey, kind uint8) filterBit {
	if kind == kindOf(lb.KindNodePort) {
		return filterBit{frontendPlane, endpointHash(key.Address, key.Port)}
	}
	return filterBit{frontendPlane, addressHash(key.Address)}
}

func (f *frontend) bit() filterBit { return frontendBit(f.key, f.value.Kind) }

func backendBit(a netip.AddrPort) filterBit {
	return filterBit{backendPlane, endpointHash(address16(a.Addr()), bits.ReverseBytes16(a.Port()))}
}

// place finds the bit: element, word in it, mask. Words are little-endian halves of the 64-bit members.
func (b filterBit) place() (element uint32, word int, mask uint32) {
	in := b.hash & 63
	return b.hash >> 6, 2*int(b.plane) + int(in>>5), 1 << (in & 31)
}

func (b filterBit) isSet(a *array) bool {
	element, word, mask := b.place()
	return a.load(element, word)&mask != 0
}

// put sets or clears the bit and says whether that changed it. The agent is the only writer.
func (b filterBit) put(a *array, set bool) bool {
	element, word, mask := b.place()
	old := a.load(element, word)
	value := old | mask
	if !set {
		value = old &^ mask
	}
	if value == old {
		return false
	}
	a.store(element, word, value)
	return true
}

// setBits walks the bits that are set; few are, so whole words are skipped.
func setBits(a *array) iter.Seq[filterBit] {
	return func(yield func(filterBit) bool) {
		for element := range a.size {
			for word := range 4 {
				for rest := a.load(element, word); rest != 0; rest &= rest - 1 {
					hash := element<<6 | uint32(word&1)<<5 | uint32(bits.TrailingZeros32(rest))
					if !yield(filterBit{plane(word / 2), hash}) {
						return
					}
				}
			}
		}
	}
}
