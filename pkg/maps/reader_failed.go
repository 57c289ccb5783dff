// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// FailedRow is a TCP connection that nothing came of.
type FailedRow struct {
	Service    uint32 // id of the service port
	Backend    uint32 // id
	Generation uint16 // of the backend id
	Refused    bool   // by a RST; false: nobody answered
}

// unansweredAfter is how many seconds a connection may be without any answer before it counts as failed: by then three of the
// client's attempts had none.
const unansweredAfter = 10

// FailedOnce remembers which entries of the flow table were told as failed. Its zero value is ready; of one goroutine.
type FailedOnce struct {
	of    *store // the tables that were walked last
	words []uint32
}

// turn readies it for these tables, and tells whether others were walked before: what was told of those may be in any place of these.
func (o *FailedOnce) turn(s *store) (others bool) {
	if o.of == s {
		return false
	}
	others = o.of != nil
	*o = FailedOnce{s, make([]uint32, int(s.flows.size)*flowWays)}
	return others
}

// Failed walks the flow table and tells each failed connection once. The programs know nothing of it: what the flow saw is
// enough, and one that failed is kept for ten minutes longer than it would serve (keptAfter): looks are more often. Flows that were pushed out
// before, in a flood, are missed, as are connections of the node's own sockets, whose packets no program sees, and those that were
// not told yet when other tables took the place of theirs.
func (r *Reader) Failed(once *FailedOnce) iter.Seq[FailedRow] {
	return func(yield func(FailedRow) bool) {
		s := r.store
		others := once.turn(s)
		expiry := newExpiry(s.clock)
		for place, f := range liveFlows(s) {
			failed, refused := expiry.failed(&f)
			if !failed || once.words[place] == f.Word {
				continue
			}
			once.words[place] = f.Word
			if !others && !yield(FailedRow{f.Service, f.Backend, f.Generation, refused}) {
				return
			}
		}
	}
}

// failed judges by what the flow has seen. Entries without a backend of their own, and the second ones of flows, do not count.
func (e expiry) failed(f *bpf.NearlbFlow) (failed, refused bool) {
	const (
		reply       = uint32(bpf.NearlbFlowSeenSEEN_REPLY)
		reset       = uint32(bpf.NearlbFlowSeenSEEN_RESET)
		established = uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)
	)
	if f.Word&flowPhase != flowLive || f.Protocol != uint8(lb.TCP) || f.Flags&(flowAlias|flowDirect) != 0 || f.Seen&established != 0 {
		return false, false
	}
	if f.Seen&reply != 0 {
		return f.Seen&reset != 0, true
	}
	return closed(f.Seen) || e.idle(f) >= unansweredAfter*uint64(e.perSecond), false
}
