// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Backends lists every endpoint of every service port by service, port and address; removed ones that connections may still
// name come with the state "gone".
func (r *Reader) Backends() iter.Seq2[BackendRow, error] {
	return r.BackendsOf(func(lb.PortName) bool { return true })
}

// BackendsOf lists those of the service ports that keep takes.
func (r *Reader) BackendsOf(keep func(lb.PortName) bool) iter.Seq2[BackendRow, error] {
	collect := func(v *view) ([]BackendRow, []error) { return collectBackends(v, v.kept(keep)) }
	return rows(r, collect, func(a, b *BackendRow) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol),
			a.Address.Compare(b.Address), cmp.Compare(a.BackendPort, b.BackendPort), cmp.Compare(a.ID, b.ID))
	})
}

func collectBackends(v *view, keep func(uint32) bool) (all []BackendRow, failed []error) {
	tallies, shares := sync.OnceValue(v.backendTallies), v.shares(keep) // all flows are read for them: not where no backend is asked for
	for id := uint32(1); id < v.backends.size; id++ {
		b, ok := v.backend(id)
		if !ok || !keep(b.Service) {
			continue
		}
		counter, err := v.backendCounters.read(id)
		if err != nil {
			failed = append(failed, fmt.Errorf("read counters of backend %s: %w", AddrPortOf(b), err))
		}
		row := v.backendRow(id, &b, &counter)
		v.noteEjection(&row, &b)
		v.noteAnswers(&row)
		if share, listed := shares[id]; listed {
			row.Share = &share
		}
		tally := tallies()[id]
		row.Open, row.Refused, row.Unanswered = tally.open, tally.refused, tally.unanswered
		v.noteOthers(&row)
		all = append(all, row)
	}
	return all, failed
}

func (v *view) backendRow(id uint32, b *backendRow, c *bpf.NearlbBackendCounter) BackendRow {
	name, where := v.port(b.Service), AddrPortOf(*b)
	return BackendRow{
		Service: name.Service.String(), Port: name.Port, Protocol: name.Protocol.String(), Address: where.Addr(), BackendPort: where.Port(),
		Node: v.node(b), Zone: v.zone(b), Tier: bpf.TierName(b.Tier), State: bpf.StateName(b.State), Lists: bpf.MemberNames(b.Member),
		ID: id, Generation: b.Generation,
		Connections: c.Connections, PacketsTo: c.PacketsTo, BytesTo: c.BytesTo, PacketsFrom: c.PacketsFrom, BytesFrom: c.BytesFrom,
	}
}

// noteEjection says of a backend whether new connections leave it out. Its state stays what its endpoint's is.
func (v *view) noteEjection(row *BackendRow, b *backendRow) {
	if !v.health.in(row.ID, 1) {
		return
	}
	h := read[healthRow](v.health, row.ID)
	if !leftOutBy(&h, b) {
		return
	}
	now, boot := time.Now(), v.clock.boot()
	at := func(booted uint64) string {
		return now.Add(time.Duration(booted - boot)).UTC().Format(time.RFC3339)
	}
	row.EjectedSince, row.EjectedUntil = at(h.Since), at(h.Until)
	row.EjectedBecause = Evidence{Unanswered: int(h.Unanswered), Clients: int(h.Clients), Until: h.Until, Times: int(h.Times)}.Because()
}

// noteAnswers says how long the backend took to answer SYNs, and when it answered a connection last.
func (v *view) noteAnswers(row *BackendRow) {
	row.TellSYN(v.synTimes(row.ID).since(nil))
	if !v.health.in(row.ID, 1) {
		return
	}
	if answered := v.health.load(row.ID, wordAnswered); answered != 0 {
		seconds := int64(age(v.clock.jiffies(), answered, v.clock.perSecond()) / uint64(v.clock.perSecond()))
		row.LastReplySeconds = &seconds
	}
}

// noteOthers says what other nodes have open.
func (v *view) noteOthers(row *BackendRow) {
	if !v.health.in(row.ID, 1) {
		return
	}
	if open, known := v.others(row.ID); known {
		row.OpenOthers = &open
	}
}

// TellSYN has the row tell of these answers to SYNs.
func (r *BackendRow) TellSYN(times *SYNTimes) {
	r.SYN = times
	r.SYN50, r.SYN99 = times.Told()
}

// shares gives the part of its tier's slots that each backend of the service ports that keep takes has, by id, for clients on this node:
// of the cluster IPs, whose traffic policy is another than that of the other frontends, and of the others where a service port has none in this family.
func (v *view) shares(keep func(uint32) bool) map[uint32]float64 {
	type family struct {
		service uint32
		four    bool
	}
	all, told, cluster := map[uint32]float64{}, map[span]bool{}, map[family]bool{}
	for _, first := range []bool{true, false} {
		for key, number := range v.frontends.all() {
			if isAddressKey(key) {
				continue
			}
			record, err := v.record(key, number)
			if err != nil || !keep(record.Service) {
				continue // who lists frontends tells of it
			}
			of := family{record.Service, addrOf(key.Address).Is4()}
			if is := kindName(record.Kind) == lb.KindClusterIP; is != first || !is && cluster[of] {
				continue
			}
			cluster[of] = cluster[of] || first
			for _, tier := range record.Sides[bpf.NearlbSideIndexSIDE_INTERNAL].Tiers {
				v.addShares(all, told, span{tier.First, tier.Count})
			}
		}
	}
	return all
}

// addShares adds those of one run of slots, which several frontends may name.
func (v *view) addShares(all map[uint32]float64, told map[span]bool, run span) {
	if run.count == 0 || told[run] || !v.slots.in(run.first, run.count) {
		return
	}
	told[run] = true
	for i := range run.count {
		all[v.slots.load(run.first+i, 0)] += 1 / float64(run.count)
	}
}

// stale is the state of a backend whose id serves another endpoint now.
const stale = "stale"

// remembered reads the backend of a flow or an affinity entry, with the generation that it had then.
func (v *view) remembered(id uint32, generation uint16) (b backendRow, where netip.AddrPort, state string) {
	b, ok := v.backend(id)
	if !ok || b.Generation != generation {
		return backendRow{}, netip.AddrPort{}, stale
	}
	return b, AddrPortOf(b), bpf.StateName(b.State)
}

// Affinity lists what session affinity remembers, by service, port and client.
func (r *Reader) Affinity() iter.Seq2[AffinityRow, error] {
	return rows(r, collectAffinity, func(a, b *AffinityRow) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol),
			a.Client.Compare(b.Client))
	})
}

func collectAffinity(v *view) (all []AffinityRow, failed []error) {
	now := v.clock.boot()
	for key, value := range v.affinity.all() {
		_, where, state := v.remembered(value.Backend, value.Generation)
		name := v.port(key.Service)
		row := AffinityRow{Service: name.Service.String(), Port: name.Port, Protocol: name.Protocol.String(), Client: addrOf(key.Client),
			Backend: where.Addr(), BackendPort: where.Port(), State: state}
		if now > value.Touched {
			row.IdleSeconds = int64((now - value.Touched) / 1e9)
		}
		all = append(all, row)
	}
	if err := v.affinity.err(); err != nil {
		failed = append(failed, fmt.Errorf("read table affinity: %w", err))
	}
	return all, failed
}
