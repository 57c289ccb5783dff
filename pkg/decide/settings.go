// SPDX-License-Identifier: Apache-2.0

package decide

import "github.com/nearlb/nearlb/pkg/lb"

// Setting is what may be written into a Service so that its traffic stays near.
type Setting string

// The settings that are tried. What the annotation does is what spec.trafficDistribution of the same name does where the slice
// controller gives hints to every endpoint: Decide goes by the hints that are there, and cannot know those that would come.
const (
	AsItIs        Setting = "as-it-is"
	WantsSameZone Setting = "PreferSameZone" // annotation nearlb.io/traffic-distribution
	WantsSameNode Setting = "PreferSameNode" // likewise
	WantsLocal    Setting = "Local"          // spec.internalTrafficPolicy
)

// Outcome says where new connections of this node's clients to the ClusterIPs of a service port go, or would go with a setting: which
// shares of them, of 1, leave the zone, and which go to endpoints of which no zone is known. Both families count as one.
type Outcome struct {
	Port        lb.PortName
	Setting     Setting
	Action      lb.Action // of the first ClusterIP
	Reason      lb.Reason
	Note        lb.Note
	OtherZone   float64
	UnknownZone float64
}

// Outcomes decides about a Service as it is, and as each setting would make it. Where the node's zone is not known no share is.
func Outcomes(in lb.Input, node lb.Node) (all []Outcome) {
	for _, s := range []Setting{AsItIs, WantsSameZone, WantsSameNode, WantsLocal} {
		all = append(all, outcomes(s.of(in), node, s)...)
	}
	return all
}

// of is the Service with the setting. One that has topology keys gives them up for it: they would come first.
func (s Setting) of(in lb.Input) lb.Input {
	svc := &in.Service
	switch s {
	case AsItIs:
		return in
	case WantsLocal:
		svc.Internal = lb.PolicyLocal
	default:
		svc.Distribution, svc.Internal = lb.Distribution(s), lb.PolicyCluster
	}
	if s == WantsSameNode {
		svc.Overflow = lb.Overflow{} // which shares out zones, and has no effect beside it
	}
	svc.TopologyKeys = nil
	return in
}

func outcomes(in lb.Input, node lb.Node, setting Setting) (all []Outcome) {
	d := Serve(in, node)
	backends := make(map[lb.BackendKey]*lb.Backend, len(d.Backends))
	for i := range d.Backends {
		backends[d.Backends[i].Key] = &d.Backends[i]
	}
	for i := range d.Frontends {
		f := &d.Frontends[i]
		if f.Kind != lb.KindClusterIP || len(all) > 0 && all[len(all)-1].Port == f.Port {
			continue
		}
		out := Outcome{Port: f.Port, Setting: setting, Action: f.Internal.Action, Reason: f.Internal.Reason, Note: f.Internal.Note}
		var total, other, unknown float64
		for j := i; j < len(d.Frontends) && d.Frontends[j].Port == f.Port; j++ {
			if d.Frontends[j].Kind == lb.KindClusterIP {
				add(d.Frontends[j].Internal, backends, node.Zone, &total, &other, &unknown)
			}
		}
		if total > 0 {
			out.OtherZone, out.UnknownZone = other/total, unknown/total
		}
		all = append(all, out)
	}
	return all
}

// add weighs the backends of a side's first tier, which get its new connections.
func add(side lb.Side, backends map[lb.BackendKey]*lb.Backend, zone string, total, other, unknown *float64) {
	if len(side.Tiers) == 0 {
		return
	}
	for _, key := range side.Tiers[0].Backends {
		b := backends[key]
		if b == nil {
			continue // who answers names on this node
		}
		weight := 1.0
		if b.Weight > 0 {
			weight = float64(b.Weight)
		}
		*total += weight
		switch {
		case b.Zone == "" || zone == "":
			*unknown += weight
		case b.Zone != zone:
			*other += weight
		}
	}
}
