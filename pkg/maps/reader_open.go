// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Open counts the connections that the programs translate and that have not ended, by protocol.
func (r *Reader) Open() map[lb.Protocol]int {
	open := map[lb.Protocol]int{}
	expiry := newExpiry(r.store.clock)
	for _, f := range liveFlows(r.store) {
		if isOpen(&f, expiry) {
			open[lb.Protocol(f.Protocol)]++
		}
	}
	return open
}

// isOpen counts each connection once, and none that goes straight to a server. One that its client has closed and whose server answers past
// this node has ended, as far as this node will see.
func isOpen(f *bpf.NearlbFlow, e expiry) bool {
	return f.Word&flowPhase == flowLive && f.Flags&(flowAlias|flowDirect) == 0 && !closed(f.Seen) && !mayBeClosed(f) && !e.expired(f)
}

// tally counts connections that the flow table remembers.
type tally struct {
	open       uint64
	refused    uint64 // TCP connections that the backend refused
	unanswered uint64 // TCP connections that had no answer for ten seconds
}

// tallied counts the connections of each key that of gives; it is false for those that do not count.
func tallied[K comparable](s *store, of func(*bpf.NearlbFlow) (K, bool)) map[K]tally {
	all := map[K]tally{}
	expiry := newExpiry(s.clock)
	for _, f := range liveFlows(s) {
		failed, refused := expiry.failed(&f)
		open := isOpen(&f, expiry)
		if !failed && !open {
			continue
		}
		key, counts := of(&f)
		if !counts {
			continue
		}
		t := all[key]
		t.open += oneIf(open)
		t.refused += oneIf(failed && refused)
		t.unanswered += oneIf(failed && !refused)
		all[key] = t
	}
	return all
}

// backendTallies counts connections by the id of their backend, which has not gone to another endpoint since.
func (v *view) backendTallies() map[uint32]tally {
	return tallied(v.store, func(f *bpf.NearlbFlow) (uint32, bool) {
		return f.Backend, v.hasBackend(f)
	})
}

// frontendTallies counts connections by what their clients named.
func (v *view) frontendTallies() map[frontendKey]tally {
	return tallied(v.store, func(f *bpf.NearlbFlow) (frontendKey, bool) {
		return frontendKey{Address: f.Frontend, Port: f.FrontendPort, Protocol: f.Protocol}, true
	})
}
