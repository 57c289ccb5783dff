// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"iter"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/nearlb/nearlb/pkg/bpf"
	"golang.org/x/sys/unix"
)

// errFull: a table has no room for another key.
var errFull = errors.New("table is full")

// kernelStore maps the kernel's tables into memory. readOnly memory cannot be written, by mistake either.
func kernelStore(m *bpf.NearlbMaps, readOnly bool) (*store, error) {
	mapped := &mappings{readOnly: readOnly}
	s := &store{
		records:         mapArray[recordValue](mapped, m.Records),
		slots:           packed(mapArray[bpf.NearlbSlotLine](mapped, m.Slots)),
		backends:        mapArray[backendRow](mapped, m.Backends),
		health:          mapArray[healthRow](mapped, m.BackendHealth),
		flows:           mapArray[bpf.NearlbFlowSet](mapped, m.Flows),
		tags:            mapArray[bpf.NearlbFlowBlock](mapped, m.FlowTags),
		over:            mapArray[bpf.NearlbFlowOverflow](mapped, m.FlowOverflows),
		spills:          mapArray[bpf.NearlbFlowSpill](mapped, m.FlowSpills),
		begun:           mapArray[bpf.NearlbFlowBegun](mapped, m.FlowBegun),
		syn:             mapArray[bpf.NearlbSynTimes](mapped, m.SynTimes),
		filter:          mapArray[bpf.NearlbKnownBits](mapped, m.KnownAddresses),
		settings:        mapArray[bpf.NearlbSettings](mapped, m.Config),
		frontends:       &kernelHash[frontendKey, uint32]{table: m.Frontends},
		affinity:        &kernelHash[bpf.NearlbAffinityKey, bpf.NearlbAffinityValue]{table: m.Affinity},
		ranges:          &kernelHash[rangeKey, uint32]{table: m.SourceRanges},
		names:           &kernelNames{kernelHash[nameKey, bpf.NearlbNameValue]{table: m.Names}},
		devices:         &kernelHash[uint32, bpf.NearlbDevice]{table: m.Devices},
		tunnel:          &kernelHash[uint32, bpf.NearlbTunnelEnd]{table: m.Tunnel},
		tunnelNodes:     &kernelHash[uint32, bpf.NearlbTunnelNode]{table: m.TunnelNodes},
		tunnelAddresses: &kernelHash[bpf.NearlbAddress, uint32]{table: m.TunnelAddresses},
		localBackends:   &kernelHash[bpf.NearlbLocalKey, uint32]{table: m.LocalBackends},
		socks:           &kernelHash[bpf.NearlbSockKey, bpf.NearlbSockValue]{table: m.Socks},
		fragments:       &kernelHash[bpf.NearlbFragmentKey, bpf.NearlbFragmentValue]{table: m.Fragments},
		flowBytes:       &kernelHash[uint32, bpf.NearlbFlowBytes]{table: m.FlowBytes},
		answerNames:     &kernelHash[bpf.NearlbAnswerKey, bpf.NearlbAnswer]{table: m.Answers},
		answerConfig:    &kernelHash[uint32, bpf.NearlbAnswerSettings]{table: m.AnswerConfig},
		verdicts:        &kernelCounters[bpf.NearlbVerdictCounter]{table: m.Verdicts},
		serviceCounters: &kernelCounters[bpf.NearlbServiceCounter]{table: m.ServiceCounters},
		backendCounters: &kernelCounters[bpf.NearlbBackendCounter]{table: m.BackendCounters},
		answerCounters:  &kernelCounters[bpf.NearlbAnswerCounter]{table: m.AnswerCounters},
		sizes:           m.Sizes(),
		clock:           kernelClock{bpf.JiffiesPerSecond()},
		close:           mapped.close,
	}
	if mapped.err != nil {
		return nil, errors.Join(mapped.err, mapped.close())
	}
	return s, nil
}

// mappings are the memory maps of one store.
type mappings struct {
	readOnly bool
	memory   [][]byte
	err      error
}

func mapArray[T any](m *mappings, table *ebpf.Map) *array {
	var element T
	if m.err != nil {
		return nil
	}
	if table == nil || uintptr(table.ValueSize()) != unsafe.Sizeof(element) {
		m.err = fmt.Errorf("map table %v into memory: its values are not of %d bytes", table, unsafe.Sizeof(element))
		return nil
	}
	protection := unix.PROT_READ | unix.PROT_WRITE
	if m.readOnly {
		protection = unix.PROT_READ
	}
	page := unix.Getpagesize()
	length := (int(table.MaxEntries())*strideOf(unsafe.Sizeof(element))*4 + page - 1) / page * page
	memory, err := unix.Mmap(table.FD(), 0, length, protection, unix.MAP_SHARED)
	if err != nil {
		m.err = fmt.Errorf("map table %v into memory: %w", table, err)
		return nil
	}
	m.memory = append(m.memory, memory)
	words := unsafe.Slice((*uint32)(unsafe.Pointer(&memory[0])), length/4)
	return newArray[T](words, table.MaxEntries())
}

func (m *mappings) close() error {
	var all error
	for _, memory := range m.memory {
		all = errors.Join(all, unix.Munmap(memory))
	}
	m.memory = nil
	return all
}

type kernelHash[K comparable, V any] struct {
	written
	table *ebpf.Map
	last  error
}

func (h *kernelHash[K, V]) get(key K) (value V, found bool, err error) {
	err = h.table.Lookup(&key, &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return value, false, nil
	}
	return value, err == nil, err
}

func (h *kernelHash[K, V]) put(key K, value V) error {
	err := h.table.Put(&key, &value)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: %w", errFull, err)
	}
	return h.tell(err)
}

func (h *kernelHash[K, V]) remove(key K) error {
	err := h.table.Delete(&key)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return h.tell(err)
}

func (h *kernelHash[K, V]) err() error { return h.last }

func (h *kernelHash[K, V]) room() uint32 { return h.table.MaxEntries() }

func (h *kernelHash[K, V]) again() hash[K, V] { return &kernelHash[K, V]{table: h.table} }

// all walks in batches where the table can, else key by key. A walk of a table that others change may miss their changes.
func (h *kernelHash[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		h.last = nil
		if h.table.Type() == ebpf.LPMTrie || !h.batches(yield) {
			h.each(yield)
		}
	}
}

// batches gives false when the kernel cannot walk this table so.
func (h *kernelHash[K, V]) batches(yield func(K, V) bool) bool {
	const chunk = 4096
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, chunk), make([]V, chunk)
	for first := true; ; first = false {
		n, err := h.table.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			h.last = err
			return !first
		}
		for i := range n {
			if !yield(keys[i], values[i]) {
				return true
			}
		}
		if err != nil {
			return true
		}
	}
}

func (h *kernelHash[K, V]) each(yield func(K, V) bool) {
	var key K
	var value V
	entries := h.table.Iterate()
	for entries.Next(&key, &value) {
		if !yield(key, value) {
			return
		}
	}
	h.last = entries.Err()
}

// kernelNames keeps names as text that NUL ends.
type kernelNames struct {
	kernelHash[nameKey, bpf.NearlbNameValue]
}

func (n *kernelNames) get(key nameKey) (string, bool, error) {
	value, found, err := n.kernelHash.get(key)
	return nameText(value), found, err
}

func (n *kernelNames) put(key nameKey, text string) error {
	return n.kernelHash.put(key, nameValue(text))
}

func (n *kernelNames) again() hash[nameKey, string] {
	return &kernelNames{kernelHash[nameKey, bpf.NearlbNameValue]{table: n.table}}
}

func (n *kernelNames) all() iter.Seq2[nameKey, string] {
	return func(yield func(nameKey, string) bool) {
		for key, value := range n.kernelHash.all() {
			if !yield(key, nameText(value)) {
				return
			}
		}
	}
}

type kernelClock struct{ hz uint32 }

func (c kernelClock) jiffies() uint32   { return bpf.Jiffies() }
func (c kernelClock) jiffies64() uint64 { return bpf.Jiffies64() }
func (c kernelClock) perSecond() uint32 { return c.hz }
func (c kernelClock) boot() uint64      { return bpf.BootNanoseconds() }
