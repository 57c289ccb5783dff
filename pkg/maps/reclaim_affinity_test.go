// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// busy is a table of affinity in which a program moves the client of each entry right after it was read.
type busy struct {
	hash[bpf.NearlbAffinityKey, bpf.NearlbAffinityValue]
	to uint32
}

func (b busy) all() iter.Seq2[bpf.NearlbAffinityKey, bpf.NearlbAffinityValue] {
	return func(yield func(bpf.NearlbAffinityKey, bpf.NearlbAffinityValue) bool) {
		for key, value := range b.hash.all() {
			if !yield(key, value) {
				return
			}
			value.Backend = b.to
			_ = b.put(key, value)
		}
	}
}

func TestAClientThatCameToAnotherBackendIsNotForgottenWithItsOldOne(t *testing.T) {
	b := newTables(t, tinySizes())
	b.apply(t, made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}, ep{host: 2, state: lb.Active, near: lb.TierNode}))
	key := bpf.NearlbAffinityKey{Client: bpf.NearlbAddress{Bytes: [16]byte{1}}, Service: 1}
	if err := b.store.affinity.put(key, bpf.NearlbAffinityValue{Backend: 1, Generation: 1}); err != nil {
		t.Fatal(err)
	}
	b.apply(t, made(1, ep{host: 2, state: lb.Active, near: lb.TierNode}))
	b.store.affinity = busy{b.store.affinity, 2}
	b.later()
	if value, found, _ := b.store.affinity.get(key); !found || value.Backend != 2 {
		t.Errorf("the client's entry is %+v, found %v", value, found)
	}
	for _, row := range collect(t, b.Reader().Backends()) {
		if row.State == "gone" {
			t.Errorf("the removed backend is still there: %+v", row)
		}
	}
}
