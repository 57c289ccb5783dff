// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Answers that come through the tunnel name the frontend: where one port has so many connections that a place is found by that as well, they find it
// there, and need no second entry, which could be lost.
func TestACarriedConnectionBeyondItsPortsBlocksHasOneEntry(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		const frontends = 160 // more than the two blocks of a port have room for
		server := at(w.pod(2), 8080)
		var all []packet
		for i := range frontends {
			s.serveOn(s.site, w, func(o *service) { o.name, o.address = fmt.Sprint("web", i), w.web(i) }, 2)
			in := w.packet(at(w.outside(1), 41000), w.web(i))
			s.enters(fromPod, in.bytes(), w.forward(routed(in), server), "translate_balance")
			if all = append(all, in); s.Failed() {
				return
			}
		}
		for _, f := range s.liveFlows() {
			if f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) != 0 || f.KeyPort != f.TwinPort {
				s.Errorf("an entry with another port: %+v", f)
				return
			}
		}
		if n := len(s.liveFlows()); n != frontends {
			s.Errorf("%d entries of %d connections", n, frontends)
		}
		for _, in := range all {
			seen := in.reply("PA", "yes")
			d := w.back(seen.bytes())
			d.from = at(w.node2(), 0x9000)
			s.goes(fromPod, d.frame(), routed(seen), "translate_reply", actRedirect)
		}
	}, lb.TCP, lb.UDP)
}
