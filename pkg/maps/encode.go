// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// The numbers of the backend states, as in C.
const (
	stateFree      = uint8(bpf.NearlbBackendStateBACKEND_FREE)
	stateActive    = uint8(bpf.NearlbBackendStateBACKEND_ACTIVE)
	stateDraining  = uint8(bpf.NearlbBackendStateBACKEND_DRAINING)
	stateQuiet     = uint8(bpf.NearlbBackendStateBACKEND_QUIET)
	stateGone      = uint8(bpf.NearlbBackendStateBACKEND_GONE)
	stateGoneKept  = uint8(bpf.NearlbBackendStateBACKEND_GONE_KEPT)
	stateResponder = uint8(bpf.NearlbBackendStateBACKEND_RESPONDER)
)

func stateOf(s lb.State) uint8 {
	switch s {
	case lb.Active:
		return stateActive
	case lb.Draining:
		return stateDraining
	case lb.Responder:
		return stateResponder
	}
	return stateQuiet
}

// gone says whether the backend of this state is no endpoint any more.
func gone(state uint8) bool { return state == stateGone || state == stateGoneKept }

// usable says whether new connections may go to a backend of this state.
func usable(state uint8) bool {
	return state == stateActive || state == stateDraining || state == stateResponder
}

func tierOf(t lb.TierName) uint8 {
	switch t {
	case lb.TierNode:
		return uint8(bpf.NearlbTierNameTIER_NODE)
	case lb.TierZone:
		return uint8(bpf.NearlbTierNameTIER_ZONE)
	case lb.TierRegion:
		return uint8(bpf.NearlbTierNameTIER_REGION)
	}
	return uint8(bpf.NearlbTierNameTIER_CLUSTER)
}

func memberOf(lists ...lb.List) (bits uint8) {
	for _, l := range lists {
		switch l {
		case lb.ListCluster:
			bits |= uint8(bpf.NearlbMemberMEMBER_CLUSTER)
		case lb.ListLocal:
			bits |= uint8(bpf.NearlbMemberMEMBER_LOCAL)
		}
	}
	return bits
}

func actionOf(a lb.Action) uint8 {
	switch a {
	case lb.Balance:
		return uint8(bpf.NearlbActionACTION_BALANCE)
	case lb.Drop:
		return uint8(bpf.NearlbActionACTION_DROP)
	}
	return uint8(bpf.NearlbActionACTION_REJECT)
}

func kindOf(k lb.Kind) uint8 {
	switch k {
	case lb.KindNodePort:
		return uint8(bpf.NearlbKindKIND_NODE_PORT)
	case lb.KindExternalIP:
		return uint8(bpf.NearlbKindKIND_EXTERNAL_IP)
	case lb.KindLoadBalancer:
		return uint8(bpf.NearlbKindKIND_LOAD_BALANCER)
	}
	return uint8(bpf.NearlbKindKIND_CLUSTER_IP)
}

func kindName(kind uint8) lb.Kind {
	for _, k := range []lb.Kind{lb.KindNodePort, lb.KindExternalIP, lb.KindLoadBalancer} {
		if kindOf(k) == kind {
			return k
		}
	}
	return lb.KindClusterIP
}

// addressRecord is what the entry of an address alone points at.
func addressRecord(key frontendKey, kind lb.Kind, service uint32) recordValue {
	return recordValue{Key: key, Service: service, Kind: kindOf(kind), Flags: uint8(bpf.NearlbRecordFlagsRECORD_ADDRESS)}
}

// frontendRecord is the record without its sides.
func frontendRecord(f *lb.Frontend, service uint32) recordValue {
	r := recordValue{Key: keyOf(f.Key), Service: service, Kind: kindOf(f.Kind), Affinity: uint32(f.Affinity / time.Second)}
	if len(f.SourceRanges) > 0 {
		r.Flags |= uint8(bpf.NearlbRecordFlagsRECORD_SOURCE_RANGES)
	}
	if f.OnHost {
		r.Flags |= uint8(bpf.NearlbRecordFlagsRECORD_ON_HOST)
	}
	return r
}

// setSide writes one side of a record, but for the tiers' slots.
func setSide(r *recordValue, index int, s *lb.Side) {
	side := &r.Sides[index]
	side.Action = actionOf(s.Action)
	side.Reason = bpf.ReasonNumber(string(s.Reason))
	side.Note = bpf.NoteNumber(string(s.Note))
	if s.Action == lb.Balance {
		side.Member = memberOf(s.List)
	}
}

// backendValue is an endpoint as the table has it, but for its generation.
func backendValue(b *lb.Backend, service uint32, node, zone uint16) backendRow {
	return backendRow{
		Address: address16(b.Key.Address.Addr()), Port: swap16(b.Key.Address.Port()), State: stateOf(b.State), Tier: tierOf(b.Near),
		Node: node, Zone: zone, Member: memberOf(b.Lists...), Service: service,
	}
}
