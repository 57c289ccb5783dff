// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
)

// crowdPorts is how many ports each Service of a crowd has.
const crowdPorts = 64

// crowd is a file of Services that nobody asks, with so many ports at least, and an endpoint each.
func crowd(count int) string {
	var text strings.Builder
	var ports []string
	for i := range crowdPorts {
		ports = append(ports, fmt.Sprintf("{name: p%[1]d, port: %[2]d}", i, 80+i))
	}
	all := strings.Join(ports, ", ")
	for i := range (count + crowdPorts - 1) / crowdPorts {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(1 + i/250), byte(1 + i%250)})
		fmt.Fprintf(&text, `---
{apiVersion: v1, kind: Service, metadata: {name: crowd-%[1]d, namespace: default}, spec: {clusterIP: %[2]s, ports: [%[4]s]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: crowd-%[1]d, namespace: default, labels: {kubernetes.io/service-name: crowd-%[1]d}},
 addressType: IPv4, ports: [%[4]s], endpoints: [{addresses: [%[3]s]}]}
`, i, ip, netip.AddrFrom4([4]byte{10, 244, byte(200 + i/250), byte(1 + i%250)}), all)
	}
	return text.String()
}

// wide is a file of one Service that nobody asks, whose ports take together as many slots as tables have at first: each has many endpoints.
// It fills that table with fewer objects than fill any other a second time.
func wide() string {
	var ports, endpoints []string
	for i := range crowdPorts {
		ports = append(ports, fmt.Sprintf("{name: p%[1]d, port: %[2]d}", i, 80+i))
	}
	for i := range 512 {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%s]}", netip.AddrFrom4([4]byte{10, 250, byte(i / 250), byte(1 + i%250)})))
	}
	all := strings.Join(ports, ", ")
	return fmt.Sprintf(`
{apiVersion: v1, kind: Service, metadata: {name: wide, namespace: default}, spec: {clusterIP: 10.96.255.1, ports: [%[1]s]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: wide, namespace: default, labels: {kubernetes.io/service-name: wide}},
 addressType: IPv4, ports: [%[1]s], endpoints: [%[2]s]}
`, all, strings.Join(endpoints, ", "))
}

// sizes are those of the tables in force here.
func (r *rig) sizes() (sizes bpf.Sizes) {
	r.t.Helper()
	r.must(r.Mounted(func() (err error) { sizes, _, err = bpf.Pinned(r.pins()); return err }))
	return sizes
}

// awaitGrown waits until the tables here have grown so many times, and those before are gone.
func (r *rig) awaitGrown(times int) {
	r.t.Helper()
	err := lab.Await(patience, func() bool {
		status, err := r.status()
		return err == nil && status.PID == r.agent.PID() && status.Growth.Times == times && status.Dirty == 0 && r.alone(ours)
	})
	if err != nil {
		status, _ := r.status()
		r.t.Fatalf("tables grow for the %d. time: %v: %+v %v", times, err, status.Growth, r.generations())
	}
}

// Every connection goes on as tables grow, though new ones would be sent elsewhere, and the ones that are made meanwhile do, too;
// by an agent that has given away what it takes to load programs.
func TestConnectionsOutliveTablesThatGrow(t *testing.T) {
	for name, flags := range methods() {
		times := 2 // that an agent can do it again does not depend on how programs are attached
		if len(flags) > 0 {
			times = 1
		}
		t.Run(name, func(t *testing.T) {
			r := newRig(t, flags...)
			r.become(ours)
			s := service(1)
			r.publish(s, r.near, r.far)
			r.awaitServers(s, "near", "far")
			kept := r.holdAll(s)
			sticky := r.stick(service(2))
			r.publish(s, r.far)
			r.awaitServers(s, "far")
			before := r.sizes()

			l := r.load()
			for _, h := range kept {
				l.repeat(h.same)
			}
			l.connect(s, r.clients()...)
			l.more(some)
			for i, text := range []string{crowd(int(before.Services)), wide()}[:times] {
				r.must(r.Manifests.WriteText(fmt.Sprintf("crowd-%d.yaml", i), text))
				r.awaitGrown(i + 1)
				l.more(some)
				sticky()
			}
			l.end()
			if after := r.sizes(); after.Services < 2*before.Services || after.Slots < before.Slots || times > 1 && after.Slots == before.Slots ||
				after.FlowSets != before.FlowSets {
				t.Errorf("tables of %+v have become ones of %+v", before, after)
			}
			for _, h := range kept {
				if peer, err := h.peer(); err != nil || peer != h.Remote() {
					t.Errorf("%s: its peer is %v, %v; it was connected to %v", h.name, peer, err, h.Remote())
				}
			}
			if dropped := r.dropped(); len(dropped) > 0 {
				t.Errorf("dropped: %v", dropped)
			}
		})
	}
}

// Whoever starts next mends what an agent left that was killed at any stage of an exchange, and no connection notices.
func TestAnExchangeOfTablesKilledAtAnyStageIsMendedByTheNextStart(t *testing.T) {
	r := newRig(t)
	r.become(ours, "--size-flow-sets", "4096")
	s := service(1)
	r.publish(s, r.near, r.far)
	r.awaitServers(s, "near", "far")
	kept := r.holdAll(s)
	r.publish(s, r.far)
	r.awaitServers(s, "far")
	l := r.load()
	for _, h := range kept {
		l.repeat(h.same)
	}
	l.connect(s, r.clients()...)
	l.more(some)
	for i, stage := range stages() {
		sets := uint32(1) << (13 + i) // a start with a larger table of flows exchanges all
		r.must(r.agent.Kill())
		r.agent = r.start(r.here, ours, "--size-flow-sets", fmt.Sprint(sets))
		done := func() bool { return r.sizes().FlowSets == sets && r.alone(ours) }
		err := lab.Await(patience, func() bool { return stage.reached(r) || done() })
		r.must(r.agent.Kill())
		if err != nil {
			t.Fatalf("%s: %v", stage.name, err)
		}
		l.more(some / 10)
		r.become(ours, "--size-flow-sets", fmt.Sprint(sets))
		if !done() {
			t.Errorf("killed when %s: %d sets, want %d", stage.name, r.sizes().FlowSets, sets)
		}
		l.more(some / 10)
		if l.failed() > 0 {
			t.Errorf("killed when %s", stage.name)
			break
		}
	}
	l.end()
}
