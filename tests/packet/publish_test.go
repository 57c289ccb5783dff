// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

func newTables(t testing.TB, o *bpf.Objects) *maps.Tables {
	t.Helper()
	tables, err := maps.Open(&o.NearlbMaps)
	check(t, err)
	t.Cleanup(func() { tables.Close() })
	check(t, tables.Configure(maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6()}))
	return tables
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// publish makes decisions the ones in force.
func (r *rig) publish(decisions ...lb.Decision) {
	r.Helper()
	for _, d := range decisions {
		_, err := r.tables.Apply(d)
		check(r, err)
		r.served[d.Service] = true
	}
}

func (r *rig) remove(name lb.ServiceName) {
	r.Helper()
	_, err := r.tables.Remove(name)
	check(r, err)
	delete(r.served, name)
}
