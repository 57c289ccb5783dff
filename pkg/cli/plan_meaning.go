// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/lb"
)

// reasonText says in words what a reason of an endpoint says in one: why it gets traffic from this node or does not.
func reasonText(reason lb.Reason, node planNode) string {
	switch reason {
	case lb.ReasonAll:
		return "ready, and nothing keeps the traffic nearer"
	case lb.ReasonSameNode:
		return fmt.Sprintf("on node %s or hinted for it", orDash(node.Name))
	case lb.ReasonSameZone:
		return fmt.Sprintf("in zone %s or hinted for it", orDash(node.Zone))
	case lb.ReasonSameRegion:
		return fmt.Sprintf("in region %s", orDash(node.Region))
	case lb.ReasonSameLabel:
		return "its Node has the same label as this one (topology keys)"
	case lb.ReasonLocalFallback:
		return "traffic policy Local finds none on this node, and the Service asks for any then"
	case lb.ReasonTerminating:
		return "terminating but serving, and no endpoint is ready"
	case lb.ReasonLocal:
		return "ready on this node, where traffic policy Local keeps the traffic"
	case lb.ReasonLocalTerminating:
		return "terminating but serving, and none on this node is ready (traffic policy Local)"
	case lb.ReasonNotReady:
		return "its condition ready is false"
	case lb.ReasonWeightZero:
		return "no new connections: annotation nearlb.io/weight of its slice is 0"
	case lb.ReasonNotServing:
		return "terminating, and its condition serving is false"
	case lb.ReasonIsTerminating:
		return "terminating, and others are ready"
	case lb.ReasonOtherNode:
		return fmt.Sprintf("not on node %s, or not hinted for it, and the traffic stays there", orDash(node.Name))
	case lb.ReasonOtherZone:
		return fmt.Sprintf("not in zone %s, or not hinted for it, and the zone has its own", orDash(node.Zone))
	case lb.ReasonOtherRegion:
		return fmt.Sprintf("not in region %s, which has its own", orDash(node.Region))
	case lb.ReasonOtherLabel:
		return "its Node lacks the label that decides, or has another value (topology keys)"
	case lb.ReasonNoTopologyMatch:
		return "no topology key of the Service allows it from this node"
	case lb.ReasonDuplicate:
		return "another copy of this address has the better condition"
	case lb.ReasonNoServicePort:
		return "the Service has no port of this name and protocol"
	case lb.ReasonOtherFamily:
		return "the Service has no address of this family"
	case lb.ReasonNoService:
		return "no such Service is served"
	}
	return string(reason)
}

// noteText says in words why a preference for near endpoints is not in force.
func noteText(note lb.Note, node planNode) string {
	switch note {
	case lb.NoteNoHints:
		return "the Service asks for near endpoints, but its EndpointSlices have no hints"
	case lb.NoteEndpointWithoutHint:
		return "hints are not in force: a ready endpoint has none"
	case lb.NoteNodeWithoutZone:
		return fmt.Sprintf("the preference for a zone is not in force: node %s has none", orDash(node.Name))
	case lb.NoteNoEndpointInZone:
		return fmt.Sprintf("the preference for a zone is not in force: no ready endpoint is in zone %s or hinted for it", orDash(node.Zone))
	case lb.NoteNoEndpointOnNode:
		return fmt.Sprintf("hints are not in force: none is for node %s", orDash(node.Name))
	case lb.NoteNoKeyMatched:
		return "of the Service's topology keys only * matches an endpoint"
	}
	return string(note)
}
