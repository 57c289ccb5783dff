// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"iter"
	"net/netip"
	"strings"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Flows lists the connections in the order of the table, one at a time: a table may have millions. Entries found by the backend's
// side of a connection whose source port is translated have the flag "alias".
func (r *Reader) Flows() iter.Seq2[FlowRow, error] { return r.flows(nil) }

// flows is Flows, with the bytes that were counted.
func (r *Reader) flows(counted byteCounts) iter.Seq2[FlowRow, error] {
	return func(yield func(FlowRow, error) bool) {
		v, err := r.view()
		if err != nil {
			yield(FlowRow{}, err)
			return
		}
		expiry, now := newExpiry(v.clock), v.clock.jiffies64()
		for place, f := range liveFlows(v.store) {
			if f.Word&flowPhase != flowLive {
				continue
			}
			row := v.flowRow(&f, expiry)
			row.AgeSeconds = v.since(place, f.Word, now)
			v.fill(counted, &row, place, &f)
			if !yield(row, nil) {
				return
			}
		}
	}
}

// Compare orders flows by client and frontend, a flow before its alias.
func (r *FlowRow) Compare(o *FlowRow) int {
	return cmp.Or(r.Client.Compare(o.Client), cmp.Compare(r.ClientPort, o.ClientPort), strings.Compare(r.Protocol, o.Protocol),
		r.Frontend.Compare(o.Frontend), cmp.Compare(r.FrontendPort, o.FrontendPort), cmp.Compare(len(r.Flags), len(o.Flags)))
}

// The states of a flow: what its packets have shown, in a word.
const (
	FlowNew      = "new"
	FlowAnswered = "answered"
	FlowOpen     = "open"
	FlowClosing  = "closing" // one side has
	FlowClosed   = "closed"
	FlowReset    = "reset"
	FlowExpired  = "expired" // free to be overwritten
)

// FlowStates are all of them, those of connections that go on first.
func FlowStates() []string {
	return []string{FlowNew, FlowAnswered, FlowOpen, FlowClosing, FlowClosed, FlowReset, FlowExpired}
}

// GoesOn tells of a state that its connection has not ended.
func GoesOn(state string) bool {
	return state == FlowNew || state == FlowAnswered || state == FlowOpen || state == FlowClosing
}

func (e expiry) state(f *bpf.NearlbFlow) string {
	seen := func(bits bpf.NearlbFlowSeen) bool { return f.Seen&uint32(bits) == uint32(bits) }
	switch {
	case e.expired(f):
		return FlowExpired
	case seen(bpf.NearlbFlowSeenSEEN_RESET):
		return FlowReset
	case seen(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN):
		return FlowClosed
	case seen(bpf.NearlbFlowSeenSEEN_CLIENT_FIN), seen(bpf.NearlbFlowSeenSEEN_SERVER_FIN):
		return FlowClosing
	case seen(bpf.NearlbFlowSeenSEEN_ESTABLISHED):
		return FlowOpen
	case seen(bpf.NearlbFlowSeenSEEN_REPLY):
		return FlowAnswered
	}
	return FlowNew
}

func (v *view) flowRow(f *bpf.NearlbFlow, e expiry) FlowRow {
	row := FlowRow{
		Protocol: lb.Protocol(f.Protocol).String(), Client: addrOf(f.Client), ClientPort: swap16(f.KeyPort), SourcePort: swap16(f.TwinPort),
		Frontend: addrOf(f.Frontend), FrontendPort: swap16(f.FrontendPort), Flags: bpf.FlowFlagNames(f.Flags), Seen: bpf.SeenNames(f.Seen),
		IdleSeconds: e.seconds(f), Expired: e.expired(f), State: e.state(f),
	}
	row.Source = v.sourceOf(f)
	if f.Flags&flowAlias != 0 {
		row.ClientPort, row.SourcePort = row.SourcePort, row.ClientPort
	}
	if f.Flags&flowDirect != 0 {
		row.Backend, row.BackendPort = row.Frontend, row.FrontendPort
		return row
	}
	b, where, state := v.remembered(f.Backend, f.Generation)
	row.Backend, row.BackendPort, row.BackendState = where.Addr(), where.Port(), state
	row.Node, row.Zone = v.node(&b), v.zone(&b)
	name := v.port(f.Service)
	row.Service, row.Port = name.Service.String(), name.Port
	return row
}

// sourceOf is the address that the backend sees.
func (v *view) sourceOf(f *bpf.NearlbFlow) netip.Addr {
	settings := read[bpf.NearlbSettings](v.settings, 0)
	switch client := addrOf(f.Client); {
	case f.Flags&flowSNAT != 0 && int(f.Source) < sourceLimit:
		return optionalAddr(settings.Sources[f.Source])
	case f.Flags&flowHairpin == 0:
		return client
	case client.Is4():
		return addrOf(settings.Loopback4)
	}
	return addrOf(settings.Loopback6)
}
