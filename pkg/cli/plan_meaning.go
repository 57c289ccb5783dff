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
		return "ready, and no hint keeps the traffic nearer"
	case lb.ReasonSameNode:
		return fmt.Sprintf("ready and hinted for node %s", orDash(node.Name))
	case lb.ReasonSameZone:
		return fmt.Sprintf("ready and hinted for zone %s", orDash(node.Zone))
	case lb.ReasonTerminating:
		return "terminating but serving, and no endpoint is ready"
	case lb.ReasonLocal:
		return "ready on this node, where traffic policy Local keeps the traffic"
	case lb.ReasonLocalTerminating:
		return "terminating but serving, and none on this node is ready (traffic policy Local)"
	case lb.ReasonNotReady:
		return "its condition ready is false"
	case lb.ReasonNotServing:
		return "terminating, and its condition serving is false"
	case lb.ReasonIsTerminating:
		return "terminating, and others are ready"
	case lb.ReasonOtherNode:
		return fmt.Sprintf("not on node %s, or not hinted for it, and the traffic stays there", orDash(node.Name))
	case lb.ReasonOtherZone:
		return fmt.Sprintf("not hinted for zone %s, which has its own", orDash(node.Zone))
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
