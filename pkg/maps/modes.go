// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Yield says which packets without a flow the programs ask connection tracking for: the kernel's NAT may have their connections,
// for kube-proxy. YieldNothing costs nothing.
type Yield uint8

// What there is to ask for; or-ed.
const (
	YieldNothing = Yield(0)
	YieldOld     = Yield(bpf.NearlbYieldYIELD_OLD) // packets in the middle of a connection: some NAT is at work
	YieldNew     = Yield(bpf.NearlbYieldYIELD_NEW) // a connection's first packets as well: kube-proxy's rules are here
)

// The bits of modes.routed.
const (
	routedHere    = uint8(bpf.NearlbRoutedROUTED_HERE)
	routedCounted = uint8(bpf.NearlbRoutedROUTED_FLOWS_COUNTED)
	routedHost    = uint8(bpf.NearlbRoutedROUTED_HOST)
	routedBegan   = uint8(bpf.NearlbRoutedROUTED_HOST_BEGAN)
)

// modes are the bytes of the word of the settings that has several writers: the agent, who drains the node, and the programs.
type modes struct{ disabled, draining, yield, routed uint8 }

// writeModes changes some of the bytes and leaves the others as they are, whoever writes them meanwhile.
func writeModes(a *array, change func(*modes)) {
	at := a.word(0, wordModes)
	for {
		old := atomic.LoadUint32(at)
		word := old
		change((*modes)(unsafe.Pointer(&word)))
		if word == old {
			return
		}
		if atomic.CompareAndSwapUint32(at, old, word) {
			a.written()
			return
		}
	}
}

// Drain has the programs leave new connections to kube-proxy, or take them again. Those that have a flow go on. It stays so until it is
// changed, whatever becomes of the agent.
func Drain(m *bpf.NearlbMaps, on bool) error {
	mapped := &mappings{}
	settings := mapArray[bpf.NearlbSettings](mapped, m.Config)
	if mapped.err != nil {
		return errors.Join(mapped.err, mapped.close())
	}
	drain(settings, on)
	return mapped.close()
}

// Drain is the same for the tables that t publishes to.
func (t *Tables) Drain(on bool) { drain(t.store.settings, on) }

func drain(settings *array, on bool) {
	writeModes(settings, func(m *modes) {
		m.draining = 0
		if on {
			m.draining = 1
		}
	})
}

// Draining says whether new connections are left to kube-proxy.
func (r *Reader) Draining() bool {
	return read[bpf.NearlbSettings](r.store.settings, 0).Draining != 0
}
