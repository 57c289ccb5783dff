// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// poolKey names the endpoints that are chosen among: those of one service port and one family.
type poolKey struct {
	port lb.PortKey
	v4   bool
}

func keyOf(f lb.Frontend) poolKey {
	return poolKey{port: f.Port.Key(), v4: f.Key.Address.Addr().Is4()}
}

// pool is every copy of every endpoint of one key, and what became of it.
type pool struct {
	poolKey
	copies   []*candidate // by address, the best copy first
	winners  []*candidate // the best copy of each address
	node     string       // this node's name
	zone     string       // and its zone
	inUse    use
	fallback bool // the cluster list stands in for the local one, which is empty
	cluster  list
	local    list
}

// candidate is one copy of an endpoint, and the lists it is in; only winners are in any.
type candidate struct {
	*lb.Endpoint
	Address            netip.AddrPort // as it is compared, and published
	inCluster, inLocal bool
	share              uint32 // of the cluster list's connections, where the Service has an overflow and it is in force
}

// gather sorts the endpoints of all slices into pools and finds the best copy of each address (requirement A18).
// Endpoints without an address or a port number are left out.
func gather(endpoints []lb.Endpoint) []pool {
	store := make([]candidate, len(endpoints)) // one allocation for all
	all := make([]*candidate, 0, len(endpoints))
	for i := range endpoints {
		if e := &endpoints[i]; servable(e) {
			store[i] = candidate{Endpoint: e, Address: canonicalPort(e.Address)}
			all = append(all, &store[i])
		}
	}
	slices.SortFunc(all, compareCandidates)
	var pools []pool
	for begin, end := 0, 0; begin < len(all); begin = end {
		key := all[begin].key()
		for end = begin + 1; end < len(all) && all[end].key() == key; end++ {
		}
		copies := all[begin:end:end]
		pools = append(pools, pool{poolKey: key, copies: copies, winners: best(copies)})
	}
	return pools
}

func (c *candidate) key() poolKey { return poolKey{port: c.Port, v4: c.Address.Addr().Is4()} }

// best are the first copies of each address.
func best(copies []*candidate) []*candidate {
	again := func(i int) bool { return copies[i].Address == copies[i-1].Address }
	for i := 1; i < len(copies); i++ {
		if !again(i) {
			continue
		}
		winners := slices.Clone(copies[:i])
		for ; i < len(copies); i++ {
			if !again(i) {
				winners = append(winners, copies[i])
			}
		}
		return winners
	}
	return copies // mostly there is one of each
}

// servable tells that there is something to send packets to. A slice port without a number means all ports, which
// nobody implements.
func servable(e *lb.Endpoint) bool { return e.Address.IsValid() && e.Address.Port() != 0 }

func compareCandidates(a, b *candidate) int {
	if c := a.Port.Compare(b.Port); c != 0 {
		return c
	}
	if c := a.Address.Compare(b.Address); c != 0 {
		return c
	}
	return compareCopies(a.Endpoint, b.Endpoint)
}

// compareCopies orders copies of one endpoint, the one that counts first: the better condition; a weight above 0; node known; zone known;
// then the lower node, zone, region, node hints, zone hints, labels; then the greater weight. So the same copy counts in whatever order the slices came,
// and all that it says holds: condition, node, zone, hints. Copies that are equal in all this have one answer.
func compareCopies(a, b *lb.Endpoint) int {
	if c := cmp.Compare(condition(a), condition(b)); c != 0 {
		return c
	}
	if c := none(a.Weight) - none(b.Weight); c != 0 {
		return c
	}
	if c := cmp.Or(unknown(a.Node)-unknown(b.Node), unknown(a.Zone)-unknown(b.Zone)); c != 0 {
		return c
	}
	if c := cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Zone, b.Zone), strings.Compare(a.Region, b.Region)); c != 0 {
		return c
	}
	return cmp.Or(slices.Compare(a.NodeHints, b.NodeHints), slices.Compare(a.ZoneHints, b.ZoneHints), a.Labels.Compare(b.Labels),
		cmp.Compare(b.Weight.Number(), a.Weight.Number()))
}

// condition ranks what a copy says of its endpoint, best first: ready; ready though terminating; serving while
// terminating; not ready; terminating and not serving.
func condition(e *lb.Endpoint) int {
	switch {
	case e.Ready && !e.Terminating:
		return 0
	case e.Ready:
		return 1
	case e.Serving && e.Terminating:
		return 2
	case !e.Terminating:
		return 3
	}
	return 4
}

func none(w lb.Weight) int {
	if w.Number() == 0 {
		return 1
	}
	return 0
}

func unknown(name string) int {
	if name == "" {
		return 1
	}
	return 0
}

// sameAnswer tells that two copies differ in nothing but the slice they came from.
func sameAnswer(a, b *lb.Endpoint) bool {
	return condition(a) == condition(b) &&
		a.Node == b.Node && a.Zone == b.Zone && a.Region == b.Region &&
		slices.Equal(a.NodeHints, b.NodeHints) && slices.Equal(a.ZoneHints, b.ZoneHints) && slices.Equal(a.Labels, b.Labels) &&
		a.Weight.Number() == b.Weight.Number()
}
