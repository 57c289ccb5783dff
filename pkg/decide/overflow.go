// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Zones that keep their traffic overload what endpoints they have where these are fewer than the zone's part (KEP-2433, KEP-4444). With
// an overflow a zone keeps what its endpoints can take, which is their fair part of the cluster's connections and a margin, and hands the
// rest to the zones that have room, in proportion to it. Clients are taken to be where the processors are. All nodes reckon with the same
// objects, so what they send to an endpoint adds up to no more than its part and the margin; and no more than that leaves a zone.

// overflowing makes the choice for a Service with an overflow: the zone's endpoints, as PreferSameZone would, and those of other zones that
// get some of the zone's connections. Hints do not count. Where the zone has none, the rest gets its connections by the room it has.
func (p *pool) overflowing(margin lb.Overflow, zones []lb.Zone, node lb.Node) (choice, func(*candidate) bool) {
	c, inZone := p.byPlace(lb.PreferSameZone, node)
	if node.Zone == "" || !p.spill(margin, zones, node.Zone) {
		return c, inZone
	}
	if inZone != nil {
		c.note = lb.NoteOverflow
	} else {
		c.reason, c.tier, c.out = lb.ReasonAll, lb.TierCluster, lb.ReasonOtherZone
	}
	return c, func(e *candidate) bool { return e.share > 0 }
}

const (
	overflowScale = 10_000_000          // what the shares of a list add up to
	leastSpill    = 0.005               // less of a zone's connections than this stays there
	leastShare    = overflowScale / 5e4 // an endpoint that is due to less gets none: a table has no slots for it
)

// spill gives each ready endpoint its share of the connections from one zone; false: all of them stay there, or nothing is known of it.
func (p *pool) spill(margin lb.Overflow, zones []lb.Zone, own string) bool {
	r := p.reckon(margin, zones)
	demand := r.demand[own]
	kept := min(demand, r.room[own])
	excess := demand - kept
	if excess <= leastSpill*demand {
		return false
	}
	free := map[string]float64{}
	var all float64
	for _, zone := range r.zones { // in their order: sums of floating point depend on it
		if f := max(0, r.room[zone]-r.demand[zone]); zone != own && f > 0 {
			free[zone] = f
			all += f
		}
	}
	if all == 0 {
		return false
	}
	spilled := false
	for _, c := range p.winners {
		if !isReady(c) {
			continue
		}
		part := float64(excess/demand) * float64(free[c.Zone]/all)
		if c.Zone == own {
			part = kept / demand
		}
		share := float64(part*overflowScale) * float64(float64(c.Due())/r.weights[c.Zone])
		if share >= leastShare {
			c.share = uint32(share + 0.5)
			spilled = spilled || c.Zone != own
		}
	}
	if !spilled { // what leaves is too little for any endpoint
		for _, c := range p.winners {
			c.share = 0
		}
	}
	return spilled
}

// reckoning is of the whole cluster, in parts of all its connections.
type reckoning struct {
	zones   []string           // those that have ready endpoints, sorted; "": endpoints of which no zone is known
	weights map[string]float64 // of their endpoints
	room    map[string]float64 // what the zone's endpoints may get from clients that have a zone
	demand  map[string]float64 // what the zone's clients make; none for ""
}

// reckon: clients without a zone have no near endpoints, and take of each zone's room by its weight.
func (p *pool) reckon(margin lb.Overflow, zones []lb.Zone) reckoning {
	r := reckoning{weights: map[string]float64{}, room: map[string]float64{}, demand: map[string]float64{}}
	var weights, processors, unplaced float64
	for _, c := range p.winners {
		if !isReady(c) {
			continue
		}
		if r.weights[c.Zone] == 0 {
			r.zones = append(r.zones, c.Zone)
		}
		r.weights[c.Zone] += float64(c.Due())
		weights += float64(c.Due())
	}
	for _, z := range zones {
		processors += float64(z.Processors)
		if z.Name == "" {
			unplaced = float64(z.Processors)
		}
	}
	if processors == 0 {
		return r
	}
	for _, z := range zones {
		if z.Name != "" {
			r.demand[z.Name] = float64(z.Processors) / processors
		}
	}
	slices.Sort(r.zones)
	most := 1 + float64(margin.Percent)/100 - unplaced/processors
	for _, zone := range r.zones {
		r.room[zone] = float64(r.weights[zone]/weights) * most
	}
	return r
}
