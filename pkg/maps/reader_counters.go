// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"fmt"
	"iter"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Verdicts counts packets by hook and fate, in the order of the BPF code; what never happened is left out.
func (r *Reader) Verdicts() iter.Seq2[VerdictRow, error] {
	return func(yield func(VerdictRow, error) bool) {
		verdicts := bpf.Verdicts()
		for h, hook := range bpf.Hooks() {
			for _, verdict := range verdicts {
				count, err := r.store.verdicts.read(uint32(h*len(verdicts)) + verdict.Number)
				if err != nil {
					err = fmt.Errorf("read table verdicts: %w", err)
				}
				row := VerdictRow{Hook: hook, Verdict: string(verdict.Class), Reason: verdict.Reason, Packets: count.Packets, Bytes: count.Bytes}
				if (count.Packets > 0 || err != nil) && !yield(row, err) {
					return
				}
			}
		}
	}
}

// Fill says how full the tables are, by name.
func (r *Reader) Fill() iter.Seq2[FillRow, error] {
	return rows(r, collectFill, func(a, b *FillRow) int { return cmp.Compare(a.Table, b.Table) })
}

func collectFill(v *view) (all []FillRow, failed []error) {
	add := func(table string, used int, limit uint32, err error) {
		if err != nil {
			failed = append(failed, fmt.Errorf("read table %s: %w", table, err))
			return
		}
		all = append(all, FillRow{table, uint64(used), uint64(limit)})
	}
	frontends, records, slots := v.inForce()
	add(bpf.NearlbMapFrontends, frontends, v.sizes.Frontends, v.frontends.err())
	add(bpf.NearlbMapRecords, records, v.sizes.Records, nil)
	add(bpf.NearlbMapSlots, slots, v.sizes.Slots, nil)
	add(bpf.NearlbMapBackends, v.usedBackends(), v.sizes.Backends, nil)
	add(bpf.NearlbMapFlows, v.usedFlows(), v.sizes.FlowSets*uint32(flowWays), nil)
	add(bpf.NearlbMapFlowBytes, count(v.flowBytes), v.flowBytes.room(), v.flowBytes.err())
	add(bpf.NearlbMapAffinity, count(v.affinity), v.sizes.Affinity, v.affinity.err())
	add(bpf.NearlbMapSourceRanges, count(v.ranges), v.sizes.SourceRanges, v.ranges.err())
	add(bpf.NearlbMapNames, len(v.texts), v.sizes.Names, nil)
	add(bpf.NearlbMapServiceCounters, v.servicePorts(), v.sizes.Services, nil)
	add(bpf.NearlbMapFragments, count(v.fragments), v.fragments.room(), v.fragments.err())
	add(bpf.NearlbMapSocks, count(v.socks), v.socks.room(), v.socks.err())
	add(bpf.NearlbMapDevices, count(v.devices), v.devices.room(), v.devices.err())
	add(bpf.NearlbMapTunnelNodes, count(v.tunnelNodes), v.tunnelNodes.room(), v.tunnelNodes.err())
	add(bpf.NearlbMapLocalBackends, count(v.localBackends), v.localBackends.room(), v.localBackends.err())
	add(tableSources, v.usedSources(), uint32(sourceLimit-1), nil)
	return all, failed
}

// servicePorts counts those that have an id, which is their index in the table of counters.
func (v *view) servicePorts() (n int) {
	for key := range v.texts {
		if key.Kind == servicePortName {
			n++
		}
	}
	return n
}

// tableSources is what Fill calls the addresses that SNAT uses: they are a part of the settings.
const tableSources = "snat_sources"

func (v *view) usedSources() (n int) {
	for i, a := range read[bpf.NearlbSettings](v.settings, 0).Sources {
		if i > 0 && a != (bpf.NearlbAddress{}) {
			n++
		}
	}
	return n
}

func count[K comparable, V any](table hash[K, V]) (n int) {
	for range table.all() {
		n++
	}
	return n
}

// inForce counts frontends, their records and the slots that those name; what was replaced in the last second is not in it.
func (v *view) inForce() (frontends, records, slots int) {
	runs := map[span]bool{}
	for key, number := range v.frontends.all() {
		frontends++
		record, err := v.record(key, number)
		if err != nil {
			continue
		}
		records++
		for _, side := range record.Sides {
			for _, tier := range side.Tiers {
				if s := (span{tier.First, tier.Count}); !runs[s] {
					runs[s] = true
					slots += int(tier.Count)
				}
			}
		}
	}
	return frontends, records, slots
}

func (v *view) usedBackends() (n int) {
	for id := uint32(1); id < v.backends.size; id++ {
		if uint8(v.backends.load(id, wordState)>>16) != stateFree {
			n++
		}
	}
	return n
}

// usedFlows counts entries that are not free to be overwritten.
func (v *view) usedFlows() (n int) {
	expiry := newExpiry(v.clock)
	for _, f := range liveFlows(v.store) {
		if !expiry.expired(&f) {
			n++
		}
	}
	return n
}
