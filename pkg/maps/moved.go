// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// The programs ask nothing of the frontend of a flow that goes on. Datagrams go where kube-proxy has them go nevertheless, which ends what it
// remembers of a UDP frontend and of a backend that its Service does not have (service-semantics.md 1.8): where a frontend has come to another
// service port, the flows of the one before end, and their next packet makes new ones. Connections of TCP and SCTP stay where they are.

// mayBringFlows says whether flows of other service ports may name a frontend that is about to be put. Mostly its address was nobody's.
func (t *Tables) mayBringFlows(old, f *frontend) bool {
	if f.key.Protocol != uint8(lb.UDP) {
		return false
	}
	if old != nil {
		return old.port != f.port
	}
	return t.knownFrontend(f).isSet(t.store.filter)
}

// frontendMoved has the next search end the flows of a frontend that are not of its service port.
func (t *Tables) frontendMoved(f *frontend) { t.moved[f.key] = &staleMark{since: t.now()} }

// isOfFormer says whether a flow came by a frontend that is searched for, and that is another service port's by now.
func (t *Tables) isOfFormer(s *search, f *bpf.NearlbFlow) bool {
	if f.Protocol != uint8(lb.UDP) || f.Flags&flowDirect != 0 || f.Word&flowPhase != flowLive {
		return false
	}
	key := frontendKey{Address: f.Frontend, Port: f.FrontendPort, Protocol: f.Protocol}
	if s.frontends[key] == nil { // most searches are for other things
		return false
	}
	now := t.frontends[key]
	return now != nil && now.port != nil && now.port.id != f.Service
}
