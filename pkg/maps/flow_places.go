// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Where the flow table has an entry: bpf/lib/flow.h and flow_insert.h in Go.

const (
	flowSets   = len(bpf.NearlbFlowBlock{}.Sets) // of a block
	blocksOwn  = 2                               // FLOW_BLOCKS_OWN
	blocksPair = 4                               // FLOW_BLOCKS_PAIR
	flowRoomy  = 24                              // FLOW_ROOMY
	flowHomes  = 4                               // FLOW_HOMES

	flowReserve = 12 // FLOW_RESERVE
	flowMany    = 8  // FLOW_MANY
)

// flowHash is flow_hash of bpf/lib/settings.h.
func flowHash(a bpf.NearlbAddress, port uint16, protocol uint8, seed uint64) uint64 {
	low, high := binary.LittleEndian.Uint64(a.Bytes[:8]), binary.LittleEndian.Uint64(a.Bytes[8:])
	x := (high ^ seed) * 0x9e3779b97f4a7c15
	x ^= x >> 32
	x ^= low ^ uint64(uint32(protocol)<<16|uint32(port))*0xbf58476d1ce4e5b9
	x *= 0xff51afd7ed558ccd
	return x ^ x>>32
}

// flowPairHash is flow_pair_hash of bpf/lib/settings.h.
func flowPairHash(f *bpf.NearlbFlow, seed uint64) uint64 {
	return flowHash(f.Client, f.KeyPort, f.Protocol, flowHash(f.Frontend, f.FrontendPort, f.Protocol, seed))
}

// spilled tells whether first entries may be where flowPairHash says.
func (s *store) spilled() bool { return s.spills.load(0, 0) != 0 }

// spill says so. It comes before the entry is shown, as in the programs.
func (s *store) spill() { atomic.StoreUint32(s.spills.word(0, 0), 1) }

// flowTag is flow_tag: never 0.
func flowTag(hash uint64) uint8 { return max(uint8(hash>>47), 1) }

// flowHome is flow_home: the place that a flow has where it is free.
func (s *store) flowHome(hash uint64) uint32 {
	return flowPlace(uint32(hash)&(s.flows.size-1), int(hash>>61))
}

// flowSet is the set of a step of a search: flowSets steps in the first block of the hash, then those of the second.
func (s *store) flowSet(hash uint64, step int) uint32 {
	mask, block := s.flows.size-1, uint32(hash/uint64(flowSets))
	if step/flowSets&1 != 0 {
		block ^= uint32(hash>>29) | 1
	}
	if step/flowSets&2 != 0 {
		block ^= (uint32(hash>>40) | 2) &^ 1
	}
	return block&(mask/uint32(flowSets))*uint32(flowSets) + (uint32(hash)+uint32(step))&mask&uint32(flowSets-1)
}

// overflow has the programs look in the second block of a hash if its entry is there. It comes before the entry is shown, as in the programs.
func (s *store) overflow(hash uint64, place uint32) {
	bits, bit, first := s.overflowOf(hash)
	if place/uint32(flowWays)/uint32(flowSets) != first && atomic.LoadUint32(bits)&bit == 0 {
		atomic.OrUint32(bits, bit)
	}
}

// overflows is flow_blocks_of: whether the second block of a hash may have entries that are found by it.
func (s *store) overflows(hash uint64) bool {
	bits, bit, _ := s.overflowOf(hash)
	return atomic.LoadUint32(bits)&bit != 0
}

// overflowOf is the bit of a hash's first block, in the table flow_overflows.
func (s *store) overflowOf(hash uint64) (bits *uint32, bit, first uint32) {
	first = s.flowSet(hash, 0) / uint32(flowSets)
	return s.over.word(first/bpf.BlocksPerOverflow, int(first%bpf.BlocksPerOverflow/32)), 1 << (first % 32), first
}

const wordsOfTags = 2 // of a set

// isEmptySet says that a set has no entry with a key: whoever takes one writes its tag before it shows the key.
func (s *store) isEmptySet(set uint32) bool {
	block, word := set/uint32(flowSets), int(set)%flowSets*wordsOfTags
	return s.tags.load(block, word)|s.tags.load(block, word+1) == 0
}

// tag is the byte of an entry in the table flow_tags.
func (s *store) tag(place uint32) *uint8 {
	const perBlock = uint32(flowSets * flowWays)
	return (*uint8)(unsafe.Add(unsafe.Pointer(s.tags.word(place/perBlock, 0)), place%perBlock))
}

// setTag writes the tag of an entry that is FLOW_WRITING by us: each byte has one writer, and neighbours have others.
func (s *store) setTag(place uint32, tag uint8) { *s.tag(place) = tag }

// tagOf reads a tag with its neighbours, in order with other atomic loads and stores.
func (s *store) tagOf(place uint32) uint8 {
	const perBlock = uint32(flowSets * flowWays)
	at := place % perBlock
	return uint8(s.tags.load(place/perBlock, int(at/4)) >> (at % 4 * 8)) // little-endian, as all that BPF is made for here
}

// tagged are the places where an entry may be, with the hash by which it is found there.
func (s *store) tagged(keys flowKeys) iter.Seq2[uint64, uint32] {
	return func(yield func(uint64, uint32) bool) {
		own := blocksOwn
		if !s.overflows(keys.own) {
			own = 1
		}
		if s.yieldTagged(keys.own, own, yield) && keys.pair != 0 && s.spilled() {
			s.yieldTagged(keys.pair, blocksPair, yield)
		}
	}
}

func (s *store) yieldTagged(hash uint64, blocks int, yield func(uint64, uint32) bool) bool {
	tag := flowTag(hash)
	for step := range blocks * flowSets {
		set := s.flowSet(hash, step)
		for way := range flowWays {
			if place := flowPlace(set, way); s.tagOf(place) == tag && !yield(hash, place) {
				return false
			}
		}
	}
	return true
}

// roomy are all places of a hash, the best for a new entry first: its homes, where their block is not nearly full and searches look there, and then
// those of the block that has most free ones.
func (s *store) roomy(hash uint64, blocks int) iter.Seq[uint32] {
	first := s.tagsOf(hash, 0, 0)
	_, turn := s.roomiest(hash, blocks, first)
	homes := uint32(0)
	if blocks == blocksOwn && first >= flowReserve {
		homes = flowHomes
	}
	return func(yield func(uint32) bool) {
		for i := range homes {
			if !yield(s.flowHome(hash) ^ i) {
				return
			}
		}
		for i := range blocks * flowSets {
			set := s.flowSet(hash, (i+turn)%(blocks*flowSets))
			for way := range flowWays {
				if !yield(flowPlace(set, way)) {
					return
				}
			}
		}
	}
}

// roomiest is the first step of the block of a hash that has most free entries, and how many. The first, which has that many, will do with very many.
func (s *store) roomiest(hash uint64, blocks, first int) (free, step int) {
	free = first
	for next := flowSets; next < blocks*flowSets && free < flowRoomy; next += flowSets {
		if n := s.tagsOf(hash, next, 0); n > free {
			free, step = n, next
		}
	}
	return free, step
}

// leaves is flow_leaves of a first entry: its address and port have many entries in their own blocks, where there are few free ones.
func (s *store) leaves(hash uint64) bool {
	tag := flowTag(hash)
	free, _ := s.roomiest(hash, blocksOwn, s.tagsOf(hash, 0, 0))
	return free < flowReserve && s.tagsOf(hash, 0, tag)+s.tagsOf(hash, flowSets, tag) >= flowMany
}

// tagsOf counts the entries of a block that have a tag, 0: that are free; step is the block's first.
func (s *store) tagsOf(hash uint64, step int, tag uint8) (count int) {
	for i := range flowSets {
		for way := range flowWays {
			if s.tagOf(flowPlace(s.flowSet(hash, step+i), way)) == tag {
				count++
			}
		}
	}
	return count
}
