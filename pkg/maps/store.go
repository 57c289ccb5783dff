// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// The keys and values of the tables, under shorter names.
type (
	frontendKey = bpf.NearlbFrontendKey
	recordValue = bpf.NearlbRecord
	backendRow  = bpf.NearlbBackend
	rangeKey    = bpf.NearlbSourceRangeKey
	nameKey     = bpf.NearlbNameKey
)

// store is the memory that the tables live in: the kernel's or, for tests and offline use, the process's own.
type store struct {
	records  *array
	slots    *array
	backends *array
	health   *array // of backends: backend_health
	flows    *array
	tags     *array // of flows: flow_tags
	over     *array // of flows: flow_overflows
	spills   *array // of flows: flow_spills
	begun    *array // of flows: flow_begun
	syn      *array // of backends: syn_times
	filter   *array
	settings *array

	frontends hash[frontendKey, uint32]
	affinity  hash[bpf.NearlbAffinityKey, bpf.NearlbAffinityValue]
	ranges    hash[rangeKey, uint32]
	names     hash[nameKey, string]
	devices   hash[uint32, bpf.NearlbDevice]    // by ifindex
	tunnel    hash[uint32, bpf.NearlbTunnelEnd] // of key 0 alone
	socks     hash[bpf.NearlbSockKey, bpf.NearlbSockValue]
	fragments hash[bpf.NearlbFragmentKey, bpf.NearlbFragmentValue]

	tunnelNodes     hash[uint32, bpf.NearlbTunnelNode] // by number in names
	tunnelAddresses hash[bpf.NearlbAddress, uint32]    // of nodes -> that number
	localBackends   hash[bpf.NearlbLocalKey, uint32]   // endpoints of this node -> backend id

	flowBytes hash[uint32, bpf.NearlbFlowBytes] // by place

	answerNames  hash[bpf.NearlbAnswerKey, bpf.NearlbAnswer]
	answerConfig hash[uint32, bpf.NearlbAnswerSettings]

	verdicts        counters[bpf.NearlbVerdictCounter]
	serviceCounters counters[bpf.NearlbServiceCounter]
	backendCounters counters[bpf.NearlbBackendCounter]
	answerCounters  counters[bpf.NearlbAnswerCounter]

	sizes bpf.Sizes
	clock clock
	wait  func() error // until no program uses what it read before; nil: not possible
	close func() error
}

// hash is a table found by key.
type hash[K comparable, V any] interface {
	get(K) (V, bool, error)
	put(K, V) error // errFull when it has no room
	remove(K) error // absent is no error
	all() iter.Seq2[K, V]
	room() uint32       // entries that it has room for
	err() error         // of the last walk by all, nil if it came to its end
	again() hash[K, V]  // the same table, with an err of its own
	watch(wrote func()) // has it called after each write
}

// again is the same store for another goroutine.
func (s *store) again() *store {
	other := *s
	other.frontends, other.affinity = s.frontends.again(), s.affinity.again()
	other.ranges, other.names, other.devices = s.ranges.again(), s.names.again(), s.devices.again()
	other.socks, other.fragments = s.socks.again(), s.fragments.again()
	other.tunnel, other.tunnelNodes = s.tunnel.again(), s.tunnelNodes.again()
	other.flowBytes = s.flowBytes.again()
	other.tunnelAddresses, other.localBackends = s.tunnelAddresses.again(), s.localBackends.again()
	return &other
}

// watch calls wrote after each single write of the publisher to any table. A large run of slots counts as several.
func (s *store) watch(wrote func()) {
	for _, a := range []*array{s.records, s.slots, s.backends, s.health, s.filter, s.settings} {
		a.wrote = wrote
	}
	s.frontends.watch(wrote)
	s.ranges.watch(wrote)
	s.names.watch(wrote)
	s.affinity.watch(wrote)
	s.devices.watch(wrote)
	s.tunnel.watch(wrote)
	s.tunnelNodes.watch(wrote)
	s.tunnelAddresses.watch(wrote)
	s.localBackends.watch(wrote)
	s.serviceCounters.watch(wrote)
	s.backendCounters.watch(wrote)
}

// counters is a per-processor array: read gives the sum.
type counters[T any] interface {
	read(index uint32) (T, error)
	readEach(indexes []uint32) iter.Seq2[T, error] // in the order asked for
	zero(index uint32) error
	watch(wrote func())
}

// clock is the time that the programs see.
type clock interface {
	jiffies() uint32 // low 32 bits
	jiffies64() uint64
	perSecond() uint32 // jiffies
	boot() uint64      // nanoseconds since boot, suspend included
}

// written tells who watches the writes of a table, if anybody does.
type written struct{ wrote func() }

func (w *written) watch(wrote func()) { w.wrote = wrote }

// tell passes the write's error on.
func (w *written) tell(err error) error {
	if w.wrote != nil && err == nil {
		w.wrote()
	}
	return err
}
