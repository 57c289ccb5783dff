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
	flows    *array
	filter   *array
	settings *array

	frontends hash[frontendKey, uint32]
	affinity  hash[bpf.NearlbAffinityKey, bpf.NearlbAffinityValue]
	ranges    hash[rangeKey, uint32]
	names     hash[nameKey, string]

	verdicts        counters[bpf.NearlbVerdictCounter]
	serviceCounters counters[bpf.NearlbServiceCounter]
	backendCounters counters[bpf.NearlbBackendCounter]

	sizes bpf.Sizes
	clock clock
	close func() error
}

// hash is a table found by key.
type hash[K comparable, V any] interface {
	get(K) (V, bool, error)
	put(K, V) error // errFull when it has no room
	remove(K) error // absent is no error
	all() iter.Seq2[K, V]
	err() error        // of the last walk by all, nil if it came to its end
	again() hash[K, V] // the same table, with an err of its own
}

// again is the same store for another goroutine.
func (s *store) again() *store {
	other := *s
	other.frontends, other.affinity = s.frontends.again(), s.affinity.again()
	other.ranges, other.names = s.ranges.again(), s.names.again()
	return &other
}

// counters is a per-processor array: read gives the sum.
type counters[T any] interface {
	read(index uint32) (T, error)
	zero(index uint32) error
}

// clock is the time that the programs see.
type clock interface {
	jiffies() uint32   // low 32 bits
	perSecond() uint32 // jiffies
	boot() uint64      // nanoseconds since boot, suspend included
}
