// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"net/netip"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
)

// health is what the tables here have of the backends of both families at a server.
func (r *rig) health(edit func(*bpf.NearlbBackend, *bpf.NearlbBackendHealth), at ...netip.Addr) (all []bpf.NearlbBackendHealth) {
	r.t.Helper()
	r.must(r.Mounted(func() error {
		tables, err := bpf.OpenMaps(r.pins(), false)
		if err != nil {
			return err
		}
		defer tables.Close()
		for _, where := range at {
			for id := range tables.Backends.MaxEntries() {
				var b bpf.NearlbBackend
				var h bpf.NearlbBackendHealth
				r.must(tables.Backends.Lookup(id, &b))
				if b.State == 0 || maps.AddrPortOf(b).Addr() != where {
					continue
				}
				r.must(tables.BackendHealth.Lookup(id, &h))
				if edit != nil {
					edit(&b, &h)
					r.must(tables.BackendHealth.Put(id, &h))
				}
				all = append(all, h)
			}
		}
		return nil
	}))
	return all
}

// knowBackends writes down what may be known of a Service's backends, and is a check that it is known: that one is left out, and until when, the
// evidence, what it is due, and what other nodes have of it. Its connections are counted anew at each start.
func (r *rig) knowBackends(s lab.Service) (check func(when string)) {
	r.t.Helper()
	s.Annotations = map[string]string{"nearlb.io/balance": "least-connections"}
	r.publish(s, r.near, r.far)
	r.awaitServers(s, "near", "far")
	until := uint64(time.Hour) + bpf.BootNanoseconds()
	want := r.health(func(b *bpf.NearlbBackend, h *bpf.NearlbBackendHealth) {
		*h = bpf.NearlbBackendHealth{Until: until, Since: 5, Answered: 6, Began: 7, OthersAt: 8, Told: 9, Unanswered: 3, Generation: b.Generation, First: 10,
			Clients: 2, Times: 4, Weight: h.Weight, SynTime: 11, SynTimed: 12, Others: 13}
	}, r.far.Address(false), r.far.Address(true))
	if len(want) < 2 {
		r.t.Fatalf("the tables have %+v", want)
	}
	return func(when string) {
		r.t.Helper()
		got := r.health(nil, r.far.Address(false), r.far.Address(true))
		if len(got) != len(want) {
			r.t.Fatalf("%s: the tables have %+v, want %+v", when, got, want)
		}
		for i := range got {
			if got[i].Open = 0; got[i] != want[i] {
				r.t.Errorf("%s: the tables have %+v, want %+v", when, got[i], want[i])
			}
		}
	}
}
