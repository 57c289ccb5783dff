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

// isOpen counts each connection once, and none that goes straight to a server.
func isOpen(f *bpf.NearlbFlow, e expiry) bool {
	return f.Word&flowPhase == flowLive && f.Flags&(flowAlias|flowDirect) == 0 && !closed(f.Seen) && !e.expired(f)
}
