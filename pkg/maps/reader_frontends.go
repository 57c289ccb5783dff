// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Frontends lists what clients can talk to, by service, port, kind and address.
func (r *Reader) Frontends() iter.Seq2[FrontendRow, error] {
	return r.FrontendsOf(func(lb.PortName) bool { return true })
}

// FrontendsOf lists those of the service ports that keep takes.
func (r *Reader) FrontendsOf(keep func(lb.PortName) bool) iter.Seq2[FrontendRow, error] {
	collect := func(v *view) ([]FrontendRow, []error) { return collectFrontends(v, v.kept(keep)) }
	return rows(r, collect, func(a, b *FrontendRow) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol),
			lb.Kind(a.Kind).Compare(lb.Kind(b.Kind)), a.Address.Compare(b.Address),
			cmp.Compare(a.FrontendPort, b.FrontendPort))
	})
}

// Addresses lists the addresses that belong to a service whatever the port, by address.
func (r *Reader) Addresses() iter.Seq2[AddressRow, error] {
	return rows(r, collectAddresses, func(a, b *AddressRow) int { return a.Address.Compare(b.Address) })
}

func collectFrontends(v *view, keep func(uint32) bool) (all []FrontendRow, failed []error) {
	ranges, err := v.sourceRanges()
	if err != nil {
		failed = append(failed, err)
	}
	tallies := sync.OnceValue(v.frontendTallies) // all flows are read for it: not where no frontend is asked for
	for key, number := range v.frontends.all() {
		if isAddressKey(key) {
			continue
		}
		record, err := v.record(key, number)
		if errors.Is(err, errDeleted) {
			continue
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("read frontend %s: %w", keyText(key), err))
			continue
		}
		if keep(record.Service) {
			row := v.frontendRow(key, &record, ranges)
			row.Open = tallies()[key].open
			all = append(all, row)
		}
	}
	if err := v.frontends.err(); err != nil {
		failed = append(failed, fmt.Errorf("read table frontends: %w", err))
	}
	return all, failed
}

func collectAddresses(v *view) (all []AddressRow, failed []error) {
	for key, number := range v.frontends.all() {
		if !isAddressKey(key) {
			continue
		}
		record, err := v.record(key, number)
		if errors.Is(err, errDeleted) {
			continue
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("read address %s: %w", keyText(key), err))
			continue
		}
		all = append(all, AddressRow{addrOf(key.Address), string(kindName(record.Kind)), v.port(record.Service).Service.String()})
	}
	if err := v.frontends.err(); err != nil {
		failed = append(failed, fmt.Errorf("read table frontends: %w", err))
	}
	return all, failed
}

// errDeleted: the entry went while it was read, which is no error of the walk.
var errDeleted = errors.New("was deleted meanwhile")

// record reads the record in force as a program does: one that repeats another key has changed hands, so look again.
func (v *view) record(key frontendKey, number uint32) (record recordValue, err error) {
	for range readAttempts {
		if number == 0 || number >= v.records.size {
			return record, fmt.Errorf("record %d does not exist", number)
		}
		record = read[recordValue](v.records, number)
		now, found, err := v.frontends.get(key)
		switch {
		case err != nil:
			return record, err
		case !found:
			return record, errDeleted
		case now == number && record.Key == key:
			return record, nil
		}
		number = now
	}
	return record, fmt.Errorf("record %d is another frontend's", number)
}

func (v *view) frontendRow(key frontendKey, r *recordValue, ranges map[uint32][]netip.Prefix) FrontendRow {
	name := v.port(r.Service)
	counter, _ := v.serviceCounters.read(min(r.Service, v.sizes.Services-1))
	row := FrontendRow{
		Service: name.Service.String(), Port: name.Port, Protocol: lb.Protocol(key.Protocol).String(), Kind: string(kindName(r.Kind)),
		Address: addrOf(key.Address), FrontendPort: swap16(key.Port), AffinitySeconds: r.Affinity, SourceRanges: []string{},
		Internal: v.sideRow(r, int(bpf.NearlbSideIndexSIDE_INTERNAL)), External: v.sideRow(r, int(bpf.NearlbSideIndexSIDE_EXTERNAL)),
		Connections: counter.Connections, Rejected: counter.Rejected, Dropped: counter.Dropped,
	}
	row.OffNode = v.wayRow(r)
	if asksRanges(r) {
		for _, p := range ranges[r.Service] {
			if p.Addr().Is4() == row.Address.Is4() {
				row.SourceRanges = append(row.SourceRanges, p.String())
			}
		}
	}
	return row
}

// wayRow says how clients off the node get to their backends on other nodes, nil: there are none.
func (v *view) wayRow(r *recordValue) *WayRow {
	elsewhere := v.elsewhere(r)
	if len(elsewhere) == 0 {
		return nil
	}
	row := WayRow{Way: string(WayOf(r.Flags)), SNAT: []string{}, Carry: []string{}}
	if row.Way == string(lb.OffNodeSNAT) {
		return &row
	}
	end, _, _ := v.tunnel.get(0)
	if end.Port == 0 {
		row.Way, row.Lacks = string(lb.OffNodeSNAT), row.Way
		return &row
	}
	for _, b := range elsewhere {
		name := cmp.Or(v.node(&b), AddrPortOf(b).Addr().String())
		node, _, _ := v.tunnelNodes.get(uint32(b.Node))
		switch {
		case node.Carries == 0 || !ShareFamily(end, node, addrOf(r.Key.Address).Is4()):
			row.SNAT = append(row.SNAT, name)
		case node.Direct == 0 && row.Way == string(lb.OffNodeDSR):
			row.Carry = append(row.Carry, name)
		}
	}
	slices.Sort(row.SNAT)
	slices.Sort(row.Carry)
	row.SNAT, row.Carry = slices.Compact(row.SNAT), slices.Compact(row.Carry)
	return &row
}

// WayOf is how a record's flags (enum record_flags) ask that clients off the node get to backends on other nodes.
func WayOf(flags uint8) lb.OffNode {
	switch {
	case flags&uint8(bpf.NearlbRecordFlagsRECORD_CARRY) == 0:
		return lb.OffNodeSNAT
	case flags&uint8(bpf.NearlbRecordFlagsRECORD_DSR) != 0:
		return lb.OffNodeDSR
	}
	return lb.OffNodeCarry
}

// ShareFamily says whether this node and another one have addresses of the family of the packets that are to go through the tunnel.
func ShareFamily(end bpf.NearlbTunnelEnd, node bpf.NearlbTunnelNode, four bool) bool {
	none := bpf.NearlbAddress{}
	if four {
		return end.Own4 != none && node.Address4 != none
	}
	return end.Own6 != none && node.Address6 != none
}

// elsewhere are the backends on other nodes that clients off the node may get to.
func (v *view) elsewhere(r *recordValue) (all []bpf.NearlbBackend) {
	for _, tier := range r.Sides[bpf.NearlbSideIndexSIDE_EXTERNAL].Tiers {
		at := span{tier.First, tier.Count}
		v.tier(at, r.Service)
		all = append(all, v.away[at]...)
	}
	return all
}

func (v *view) sideRow(r *recordValue, index int) SideRow {
	side := &r.Sides[index]
	row := SideRow{Action: bpf.ActionName(side.Action), Reason: bpf.ReasonName(side.Reason), Note: bpf.NoteName(side.Note), Tiers: []TierRow{}}
	for i, tier := range side.Tiers {
		if tier.Count > 0 {
			row.Tiers = append(row.Tiers, TierRow{Tier: bpf.TierName(side.TierNames[i]), Slots: tier.Count,
				Backends: v.tier(span{tier.First, tier.Count}, r.Service)})
		}
	}
	return row
}

// tier lists the distinct backends of a run of slots that are this service port's, by address.
func (v *view) tier(s span, service uint32) []TierBackendRow {
	if known, ok := v.tiers[s]; ok {
		return known
	}
	seen := map[uint32]bool{}
	list := []TierBackendRow{}
	for i := range s.count {
		if !v.slots.in(s.first, i+1) {
			break
		}
		id := v.slots.load(s.first+i, 0)
		if seen[id] {
			continue
		}
		seen[id] = true
		if b, ok := v.backend(id); ok && b.Service == service {
			where := AddrPortOf(b)
			list = append(list, TierBackendRow{where.Addr(), where.Port(), v.node(&b), v.zone(&b), bpf.StateName(b.State)})
			if b.Tier != uint8(bpf.NearlbTierNameTIER_NODE) {
				v.away[s] = append(v.away[s], b)
			}
		}
	}
	slices.SortFunc(list, func(a, b TierBackendRow) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
	v.tiers[s] = list
	return list
}

// sourceRanges are the ranges of each service port, in order.
func (v *view) sourceRanges() (map[uint32][]netip.Prefix, error) {
	all := map[uint32][]netip.Prefix{}
	for key := range v.ranges.all() {
		service := swap32(key.Service)
		all[service] = append(all[service], prefixOf(key))
	}
	for _, list := range all {
		slices.SortFunc(list, func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
	}
	if err := v.ranges.err(); err != nil {
		return all, fmt.Errorf("read table source_ranges: %w", err)
	}
	return all, nil
}
