// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
)

// What tables hold beside a connection here and there outlives a restart, an upgrade and a downgrade: connections of a full block, and what is
// known of backends.
func TestWhatTablesHoldOutlivesAnUpgradeAndADowngrade(t *testing.T) {
	r := newRig(t, "--size-flow-sets=256")
	r.become(ours)
	known := r.knowBackends(service(2))
	held := r.fillBlock()
	for _, next := range []layout{ours, other, ours} {
		r.become(next)
		held("after a start of " + next.name)
		if next.name == ours.name { // whose tables this test can read
			known("after a start of " + next.name)
		}
	}
}

// fillBlock opens connections of one port to more frontends than its blocks of the flow table have entries for, and is a check that they go
// on, those whose entries are elsewhere as well. Their server tells them apart by ports that are not their client's.
func (r *rig) fillBlock() (check func(when string)) {
	r.t.Helper()
	const ports = 130
	s, slices := lab.Service{Name: "many", ClusterIPs: service(1).ClusterIPs}, lab.Slices{Service: "many", Endpoints: []lab.Endpoint{{Pod: r.near}}}
	for i := range ports {
		name := fmt.Sprint("p", i)
		s.Ports = append(s.Ports, lab.Port{Name: name, Protocol: "TCP", Port: uint16(1000 + i)})
		slices.Ports = append(slices.Ports, lab.Port{Name: name, Protocol: "TCP", Port: targetPort})
	}
	r.must(r.Manifests.Write("many.yaml", append(slices.Objects(), s)...))
	r.awaitPods(r.pod, r.near)
	var all []*held
	for _, address := range s.ClusterIPs {
		r.must(lab.Await(patience, func() bool {
			_, err := r.pod.Ask(context.Background(), "tcp", netip.AddrPortFrom(address, 1000+ports-1), lab.DialOptions{Patience: patience})
			return err == nil
		}))
		for i := range ports {
			conn, err := r.pod.Dial(context.Background(), "tcp", netip.AddrPortFrom(address, uint16(1000+i)), lab.DialOptions{LocalPort: 15000})
			r.must(err)
			r.t.Cleanup(func() { _ = conn.Close() })
			answer, err := conn.Who()
			r.must(err)
			all = append(all, &held{conn, fmt.Sprintf("from port 15000 to %s, port %d", address, 1000+i), answer})
		}
	}
	r.must(r.Mounted(r.blocksWereFull))
	return func(when string) {
		r.t.Helper()
		for _, h := range all {
			if err := h.same(); err != nil {
				r.t.Errorf("%s: %v", when, err)
			}
		}
	}
}

// blocksWereFull is an error unless some connection's first entry is, or was, elsewhere than its port's blocks.
func (r *rig) blocksWereFull() error {
	tables, err := bpf.OpenMaps(r.pins(), true)
	if err != nil {
		return err
	}
	defer tables.Close()
	var spills bpf.NearlbFlowSpill
	if err := tables.FlowSpills.Lookup(uint32(0), &spills); err != nil {
		return err
	}
	if spills.Spilled == 0 {
		return fmt.Errorf("no block was full: the test does not test what it should")
	}
	return nil
}
