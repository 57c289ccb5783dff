// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"

	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
)

// Why traffic leaves its zone, beside the notes of sides (lb.Note) and their reasons (lb.Reason) of the same spelling.
const (
	crossedNoPreference = "no-preference"          // nothing asks for near endpoints
	crossedNoneReady    = "none-ready-in-zone"     // the zone has endpoints, and none takes connections
	crossedHinted       = "hinted-from-other-zone" // hints give this zone endpoints of another
	crossedBefore       = "no-longer"              // new connections stay in the zone by now
	crossedNoZone       = "endpoint-without-zone"
)

// whyCrossed says why a service port's connections go to a zone: by the first side that has a backend there. Idle says that the zone
// itself has endpoints that take none.
func whyCrossed(own, to string, sides []maps.SideRow, idle bool) string {
	if own == "" {
		return string(lb.NoteNodeWithoutZone)
	}
	for _, side := range sides {
		if !slices.ContainsFunc(side.Tiers, func(t maps.TierRow) bool {
			return slices.ContainsFunc(t.Backends, func(b maps.TierBackendRow) bool { return b.Zone == to })
		}) {
			continue
		}
		reason := lb.Reason(side.Reason)
		switch {
		case to == "":
			return crossedNoZone
		case side.Note == string(lb.NoteNoEndpointInZone) && idle:
			return crossedNoneReady
		case side.Note != "":
			return side.Note
		case reason == lb.ReasonAll:
			return crossedNoPreference
		case reason == lb.ReasonSameZone || reason == lb.ReasonSameNode:
			return crossedHinted
		}
		return side.Reason
	}
	return crossedBefore
}

// crossedText says in words what a reason says in one.
func crossedText(reason string, node plan.Node) string {
	for _, kind := range []explain.Kind{explain.Crossed, explain.Note} {
		if text := plan.Meaning(kind, reason, node); text != reason {
			return text
		}
	}
	return plan.ReasonText(lb.Reason(reason), node)
}

// crossingNext is what to write, or to look at.
func crossingNext(reason string, service lb.ServiceName, z *zonesSeen) string {
	annotate := fmt.Sprintf("kubectl -n %s annotate service %s nearlb.io/traffic-distribution=PreferSameZone", service.Namespace, service.Name)
	slices := fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s -o yaml", service.Namespace, service.Name)
	switch reason {
	case crossedNoPreference:
		return fmt.Sprintf(`kubectl -n %s patch service %s -p '{"spec":{"trafficDistribution":"PreferClose"}}'`, service.Namespace, service.Name)
	case string(lb.NoteNoHints), string(lb.NoteEndpointWithoutHint), string(lb.NoteNoEndpointOnNode), crossedHinted:
		return annotate + " (needs no hints); which there are: " + slices
	case crossedNoneReady, string(lb.ReasonTerminating):
		return fmt.Sprintf("nearlb backends %s: why is none ready?", service)
	case string(lb.NoteNoEndpointInZone):
		return fmt.Sprintf("run a pod of it in zone %s (topologySpreadConstraints)", table.OrDash(z.zone))
	case string(lb.NoteNodeWithoutZone):
		return fmt.Sprintf("kubectl label node %s topology.kubernetes.io/zone=ZONE", table.OrDash(z.node))
	case string(lb.NoteNoKeyMatched), string(lb.ReasonSameRegion), string(lb.ReasonSameLabel):
		return "put topology.kubernetes.io/zone into the Service's nearlb.io/topology-keys, and an endpoint into the zone"
	case string(lb.NoteOverflow):
		return fmt.Sprintf("run more pods of it in zone %s, or raise its annotation nearlb.io/overflow", table.OrDash(z.zone))
	case string(lb.ReasonLocalFallback):
		return "run a pod of it on this node, or take nearlb.io/local-fallback away: then there is none"
	case crossedNoZone:
		return "label their Nodes with topology.kubernetes.io/zone: " + slices
	}
	return ""
}

// withText is the share that would leave the zone, with a setting: "60 %"; or its action where it balances none.
func withText(all []zoneSetting, setting string) string {
	for _, s := range all {
		if s.Setting != setting {
			continue
		}
		if s.Action != string(lb.Balance) {
			return s.Action
		}
		if s.UnknownZone > 0 {
			return "?"
		}
		return percent(s.OtherZone)
	}
	return ""
}

// percent is a share of 1 in whole percents; what is little is not nothing.
func percent(share float64) string {
	switch {
	case share > 0 && share < 0.01:
		return "<1 %"
	case share > 0.99 && share < 1:
		return ">99 %"
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
