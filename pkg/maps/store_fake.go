// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"
	"time"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// sockLimit is the size of the table socks in bpf/lib/maps.h.
const sockLimit = 65536

// The sizes of the tables tunnel_nodes, tunnel_addresses and local_backends in bpf/lib/maps.h.
const (
	tunnelNodeLimit    = 16384
	tunnelAddressLimit = 65536
	localBackendLimit  = 65536
)

// deviceLimit is the size of the table devices in bpf/lib/maps.h.
const deviceLimit = 1024

// memoryStore is a store in plain memory, with the kernel's limits.
func memoryStore(sizes bpf.Sizes) *store {
	sizes = sizes.WithDefaults()
	blocks, overflows := bpf.FlowBlocks(sizes.FlowSets)
	s := &store{
		records:         newMemory[recordValue](sizes.Records),
		slots:           packed(newMemory[bpf.NearlbSlotLine](sizes.Slots / bpf.SlotsPerLine)),
		backends:        newMemory[backendRow](sizes.Backends),
		health:          newMemory[healthRow](sizes.Backends),
		flows:           newMemory[bpf.NearlbFlowSet](sizes.FlowSets),
		tags:            newMemory[bpf.NearlbFlowBlock](blocks),
		over:            newMemory[bpf.NearlbFlowOverflow](overflows),
		spills:          newMemory[bpf.NearlbFlowSpill](1),
		begun:           newMemory[bpf.NearlbFlowBegun](sizes.FlowSets),
		syn:             newMemory[bpf.NearlbSynTimes](sizes.Backends),
		filter:          newMemory[bpf.NearlbKnownBits](filterWords),
		settings:        newMemory[bpf.NearlbSettings](1),
		frontends:       newMemoryHash[frontendKey, uint32](sizes.Frontends),
		affinity:        newMemoryHash[bpf.NearlbAffinityKey, bpf.NearlbAffinityValue](sizes.Affinity),
		ranges:          newMemoryHash[rangeKey, uint32](sizes.SourceRanges),
		names:           newMemoryHash[nameKey, string](sizes.Names),
		devices:         newMemoryHash[uint32, bpf.NearlbDevice](deviceLimit),
		tunnel:          newMemoryHash[uint32, bpf.NearlbTunnelEnd](1),
		tunnelNodes:     newMemoryHash[uint32, bpf.NearlbTunnelNode](tunnelNodeLimit),
		tunnelAddresses: newMemoryHash[bpf.NearlbAddress, uint32](tunnelAddressLimit),
		localBackends:   newMemoryHash[bpf.NearlbLocalKey, uint32](localBackendLimit),
		socks:           newMemoryHash[bpf.NearlbSockKey, bpf.NearlbSockValue](sockLimit),
		fragments:       newMemoryHash[bpf.NearlbFragmentKey, bpf.NearlbFragmentValue](sizes.Fragments),
		flowBytes:       newMemoryHash[uint32, bpf.NearlbFlowBytes](flowsCounted),
		answerNames:     newMemoryHash[bpf.NearlbAnswerKey, bpf.NearlbAnswer](sizes.Answers),
		answerConfig:    newMemoryHash[uint32, bpf.NearlbAnswerSettings](1),
		verdicts:        newMemoryCounters[bpf.NearlbVerdictCounter](),
		serviceCounters: newMemoryCounters[bpf.NearlbServiceCounter](),
		backendCounters: newMemoryCounters[bpf.NearlbBackendCounter](),
		answerCounters:  newMemoryCounters[bpf.NearlbAnswerCounter](),
		sizes:           sizes,
		clock:           &memoryClock{start: time.Now()},
		wait:            func() error { return nil },
		close:           func() error { return nil },
	}
	write(s.settings, 0, bpf.NearlbSettings{Schema: bpf.SchemaVersion, Seed: 1})
	return s
}

func newMemory[T any](size uint32) *array {
	var element T
	return newArray[T](make([]uint32, int(size)*strideOf(unsafe.Sizeof(element))), size)
}

// refuseAfter makes the table writes after the first n fail with err.
func (s *store) refuseAfter(n int, err error) {
	answer := func() error {
		if n--; n < 0 {
			return err
		}
		return nil
	}
	s.frontends.(*memoryHash[frontendKey, uint32]).refuse = answer
	s.ranges.(*memoryHash[rangeKey, uint32]).refuse = answer
	s.names.(*memoryHash[nameKey, string]).refuse = answer
	s.devices.(*memoryHash[uint32, bpf.NearlbDevice]).refuse = answer
}

type memoryHash[K comparable, V any] struct {
	written
	entries map[K]V
	limit   uint32
	refuse  func() error // a test's answer in place of the kernel's
}

func newMemoryHash[K comparable, V any](limit uint32) *memoryHash[K, V] {
	return &memoryHash[K, V]{entries: map[K]V{}, limit: limit, refuse: func() error { return nil }}
}

func (h *memoryHash[K, V]) get(key K) (V, bool, error) {
	value, found := h.entries[key]
	return value, found, nil
}

func (h *memoryHash[K, V]) put(key K, value V) error {
	if err := h.refuse(); err != nil {
		return err
	}
	if _, found := h.entries[key]; !found && len(h.entries) >= int(h.limit) {
		return errFull
	}
	h.entries[key] = value
	return h.tell(nil)
}

func (h *memoryHash[K, V]) remove(key K) error {
	if err := h.refuse(); err != nil {
		return err
	}
	delete(h.entries, key)
	return h.tell(nil)
}

func (h *memoryHash[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for key, value := range h.entries {
			if !yield(key, value) {
				return
			}
		}
	}
}

func (h *memoryHash[K, V]) err() error { return nil }

func (h *memoryHash[K, V]) room() uint32 { return h.limit }

func (h *memoryHash[K, V]) again() hash[K, V] { return h }

type memoryCounters[T any] struct {
	written
	values map[uint32]T
}

func newMemoryCounters[T any]() *memoryCounters[T] {
	return &memoryCounters[T]{values: map[uint32]T{}}
}

func (c *memoryCounters[T]) read(index uint32) (T, error) { return c.values[index], nil }

func (c *memoryCounters[T]) readEach(indexes []uint32) iter.Seq2[T, error] {
	return oneByOne(c, indexes)
}

func (c *memoryCounters[T]) zero(index uint32) error {
	delete(c.values, index)
	return c.tell(nil)
}

// memoryClock counts from the store's making.
type memoryClock struct{ start time.Time }

func (c *memoryClock) jiffies() uint32   { return uint32(c.jiffies64()) }
func (c *memoryClock) jiffies64() uint64 { return uint64(time.Since(c.start) / (time.Second / 100)) }
func (c *memoryClock) perSecond() uint32 { return 100 }
func (c *memoryClock) boot() uint64      { return uint64(time.Since(c.start)) }
