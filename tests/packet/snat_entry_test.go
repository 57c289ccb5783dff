// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// life is what a test can say about an entry from outside: of one that is about to expire, nothing.
type life int

const (
	dead life = iota
	perhaps
	alive
)

// entry is one entry of a flow through SNAT, in words.
type entry struct {
	flow    bpf.NearlbFlow
	alias   bool
	client  netip.AddrPort
	front   netip.AddrPort
	port    uint16 // that the server sees
	server  netip.AddrPort
	serving bool // the server takes datagrams
	active  bool // and new connections
	life    life
}

func (e entry) closed() bool {
	const both = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN)
	return e.flow.Seen&uint32(bpf.NearlbFlowSeenSEEN_RESET) != 0 || e.flow.Seen&both == both
}

// held: the connection has ended, and the entry keeps its port from others as long as there are other ports.
func (e entry) held() bool {
	const ended = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN | bpf.NearlbFlowSeenSEEN_SERVER_WAITS)
	const wire = uint8(bpf.NearlbFlowFlagsFLOW_SNAT | bpf.NearlbFlowFlagsFLOW_ALIAS)
	return e.flow.Seen&ended == ended && e.flow.Flags&wire == wire
}

// answered: a datagram that has its answer, or looks like one: its client was not heard after it, and others get its port where none is free.
func (e entry) answered() bool {
	const reply, wentOn = uint32(bpf.NearlbFlowSeenSEEN_REPLY), uint32(bpf.NearlbFlowSeenSEEN_CLIENT_WAITS | bpf.NearlbFlowSeenSEEN_ESTABLISHED)
	return e.flow.Protocol == uint8(lb.UDP) && e.flow.Seen&(reply|wentOn) == reply
}

// silent: nothing came of the connection, and that long ago was its last packet.
func (e entry) silent(slack uint32) bool {
	came, seconds := bpf.NearlbFlowSeenSEEN_ESTABLISHED, uint32(2)
	if e.flow.Protocol == uint8(lb.UDP) {
		came, seconds = bpf.NearlbFlowSeenSEEN_REPLY, 5
	}
	return e.flow.Seen&uint32(came) == 0 && int64(int32(bpf.Jiffies()-e.flow.Touched)) >= int64((seconds+slack)*bpf.JiffiesPerSecond())
}

// mayLosePort: the connection has ended, whatever its server remembers, or never came to be, and another may get its port at any time.
func (e entry) mayLosePort() bool {
	const wire = uint8(bpf.NearlbFlowFlagsFLOW_SNAT | bpf.NearlbFlowFlagsFLOW_ALIAS)
	return (e.closed() || e.answered() || e.silent(0)) && e.flow.Flags&wire == wire
}

// mustServe: the connection has ended, or never came to be, and its port is another's where there is no better one.
func (e entry) mustServe() bool {
	const forgotten = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN | bpf.NearlbFlowSeenSEEN_CLIENT_WAITS)
	return e.held() || e.mayLosePort() && (e.answered() || e.flow.Seen&forgotten == forgotten || !e.closed() && e.silent(slack))
}

// isOf: it is an entry of the client's connection to what it takes for the server.
func (e entry) isOf(in packet) bool { return e.client == in.src && e.front == in.dst }

// twin: they are the two entries of one flow.
func (e entry) twin(of entry) bool {
	return e.alias != of.alias && e.client == of.client && e.front == of.front && e.port == of.port && e.server == of.server
}

// doubt is for entries as they were before a packet: of those that were about to expire by the time it was through, nothing can be
// said.
func doubt(before []entry) {
	for i, e := range before {
		if e.life == alive && lifeOf(e.flow) != alive {
			before[i].life = perhaps
		}
	}
}

// entries lists the flow table.
func (r *rig) entries() []entry {
	r.Helper()
	var all []entry
	for _, f := range r.liveFlows() {
		e := entry{flow: f, alias: f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) != 0}
		own, other := swap(f.KeyPort), swap(f.TwinPort)
		if e.alias {
			own, other = other, own
		}
		e.client, e.front, e.port = at(addressOf(f.Client), own), at(addressOf(f.Frontend), swap(f.FrontendPort)), other
		e.life = lifeOf(f)
		r.judge(&e)
		all = append(all, e)
	}
	return all
}

// judge says who the entry's server is; an id that was handed on is nobody's.
func (r *rig) judge(e *entry) {
	r.Helper()
	var b bpf.NearlbBackend
	check(r, r.objects.Backends.Lookup(e.flow.Backend, &b))
	if b.Generation != e.flow.Generation || b.State == uint8(bpf.NearlbBackendStateBACKEND_FREE) {
		e.life = dead
		return
	}
	e.server = at(addressOf(b.Address), swap(b.Port))
	e.active = b.State == uint8(bpf.NearlbBackendStateBACKEND_ACTIVE)
	e.serving = e.active || b.State == uint8(bpf.NearlbBackendStateBACKEND_DRAINING)
}

// slack is how many seconds are left to the clock.
const slack = 3

func lifeOf(f bpf.NearlbFlow) life {
	age := int64(int32(bpf.Jiffies()-f.Touched)) / int64(bpf.JiffiesPerSecond())
	left := int64(timeout(f)) - age
	switch {
	case left > slack && (entry{flow: f}).mayLosePort():
		return perhaps
	case left > slack:
		return alive
	case left < -slack:
		return dead
	}
	return perhaps
}

func timeout(f bpf.NearlbFlow) uint32 {
	t := bpf.DefaultTimeouts()
	seen := func(bit bpf.NearlbFlowSeen) bool { return f.Seen&uint32(bit) != 0 }
	switch {
	case f.Protocol == 17 && seen(bpf.NearlbFlowSeenSEEN_ESTABLISHED):
		return t.UDPAnswered
	case f.Protocol == 17:
		return t.UDPUnanswered
	case (entry{flow: f}).held():
		return t.TCPHeld
	case (entry{flow: f}).closed():
		return t.TCPClosed
	case seen(bpf.NearlbFlowSeenSEEN_ESTABLISHED):
		return t.TCPEstablished
	}
	return t.TCPUnanswered
}

func addressOf(a bpf.NearlbAddress) netip.Addr { return netip.AddrFrom16(a.Bytes).Unmap() }

// oneOfEach wants no two flows of which a packet could belong to both: in either direction.
func (r *rig) oneOfEach() {
	r.Helper()
	type way struct {
		alias    bool
		from, to netip.AddrPort
	}
	ways := map[way]entry{}
	for _, e := range r.entries() {
		key := way{false, e.client, e.front}
		if e.alias {
			key = way{true, at(netip.Addr{}, e.port), e.server}
		}
		if !e.server.IsValid() {
			continue // no packet is its
		}
		if other, taken := ways[key]; taken {
			r.Errorf("two entries of %v: of %s to %s and of %s to %s", key, e.client, e.front, other.client, other.front)
		}
		ways[key] = e
	}
}
