// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// crossWorlds are worlds for SNAT without routes, as in nearlb trace: what is left of it is the flow table.
func crossWorlds(t *testing.T, sets uint32, ports maps.PortRange, test func(*testing.T, *rig, world)) {
	t.Helper()
	o := withSets(sets)
	o.Knobs = map[string]any{"route_lookup": uint8(0)}
	forEachOf(t, o, through([]door{networkDoor}, worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		own4, own6 := netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("fd00:31::1")
		check(t, r.tables.Configure(maps.Config{
			ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), SNATPorts: ports, Node4: own4, Node6: own6,
		}))
		test(t, r, w)
	})
}

// crossServices are so many services with one server, on another node.
func crossServices(w world, n int) []lb.Decision {
	var all []lb.Decision
	for i := range n {
		all = append(all, w.decide(service{
			name: fmt.Sprint("s", i), kind: lb.KindLoadBalancer, address: at(w.outside(10+i), 80), tiers: tiersOf(w.tier(8080, 2)), remote: true,
		}))
	}
	return all
}

// More connections than ports, started over and over from both processors while answers come: whenever they stop, no two
// entries of the table have the same client's packets, or look alike to the server. In a small table connections also lose their entries to
// others all the time.
func TestProcessorsNeverGiveOnePortToTwoConnectionsThroughSNAT(t *testing.T) {
	t.Run("room for all", func(t *testing.T) { startEverywhere(t, 256, 43) })
	t.Run("room for few", func(t *testing.T) { startEverywhere(t, 2, 3) })
}

// startEverywhere: in a table of so many sets, so many connections of 48 ports must have been there at once.
func startEverywhere(t *testing.T, sets uint32, least int) {
	t.Helper()
	ports := maps.PortRange{First: 61000, Last: 61047}
	crossWorlds(t, sets, ports, func(t *testing.T, r *rig, w world) {
		const services = 4
		r.publish(crossServices(w, services)...)
		var samples []sampled
		for i := range 224 {
			in := sized(w.packet(at(w.outside(1+i%2), uint16(41000+i/8)), at(w.outside(10+i%services), 80)))
			samples = append(samples, sampled{hook: fromPod, before: in, after: in})
		}
		for i := range 32 {
			back := sized(w.packet(at(w.pod(2), 8080), at(w.own(), ports.First+uint16(i))).with("SA", ""))
			samples = append(samples, sampled{hook: fromPod, before: back, after: back})
		}
		c := r.gather(samples)
		most := 0
		for round := range 200 {
			r.evict()
			c.run(r, samples[0].before, 600)
			r.oneOfEach()
			if t.Failed() {
				t.Fatalf("in round %d", round)
			}
			most = max(most, len(r.liveFlows())/2)
		}
		if most < least {
			t.Errorf("at most %d connections had a port at once, of %d ports", most, ports.Count())
		}
	})
}

// Both processors start the same connections at once, each in its own order and each answered: every connection leaves under
// one port, which no other has, and its answers reach its client alone, from the address that this knows.
func TestProcessorsKeepConnectionsThroughSNATApart(t *testing.T) {
	crossWorlds(t, 256, maps.PortRange{First: 61000, Last: 61099}, func(t *testing.T, r *rig, w world) {
		const frontends = 3
		r.publish(crossServices(w, frontends)...)
		var all []packet
		for i := range 24 * frontends {
			all = append(all, w.packet(at(w.outside(1+i%2), uint16(41000+i/6)), at(w.outside(10+i/2%frontends), 80)))
		}
		lost := 0
		for range 60 {
			r.evict()
			seen := r.crossTogether(all)
			owner := map[netip.AddrPort]packet{}
			for i, outs := range seen {
				for _, out := range outs {
					other, taken := owner[out]
					switch {
					case !out.IsValid():
						lost++
					case taken && (other.src != all[i].src || other.dst != all[i].dst):
						t.Fatalf("%s to %s and %s to %s both left as %s", other.src, other.dst, all[i].src, all[i].dst, out)
					case out != outs[0] && outs[0].IsValid():
						t.Fatalf("%s to %s left as %s and as %s", all[i].src, all[i].dst, outs[0], out)
					}
					owner[out] = all[i]
				}
			}
			if r.oneOfEach(); t.Failed() {
				return
			}
		}
		if sent := 60 * 2 * len(all); lost*20 > sent {
			t.Errorf("%d of %d first packets were dropped", lost, sent)
		}
	})
}

// crossTogether sends every first packet from each of two processors, has each answered at once, and says as what each left; an
// invalid one: dropped.
func (r *rig) crossTogether(all []packet) [][2]netip.AddrPort {
	r.Helper()
	var group errgroup.Group
	var start sync.WaitGroup
	start.Add(1)
	seen := make([][2]netip.AddrPort, len(all))
	for worker := range 2 {
		order := rand.New(rand.NewPCG(uint64(worker), 5)).Perm(len(all))
		group.Go(func() error {
			start.Wait()
			for _, i := range order {
				out, err := r.cross(all[i])
				if err != nil {
					return err
				}
				seen[i][worker] = out
			}
			return nil
		})
	}
	start.Done()
	check(r, group.Wait())
	return seen
}

// cross sends a packet to a server and an answer back. The source is invalid when the packet was dropped.
func (r *rig) cross(in packet) (netip.AddrPort, error) {
	got, err := r.quick(fromPod, in)
	if err != nil || got.action == actShot {
		return netip.AddrPort{}, err
	}
	src, dst, err := quickEndpoints(got.frame)
	if err != nil {
		return src, err
	}
	got, err = r.quick(fromPod, in.from(src).to(dst).reply("SA", ""))
	if err != nil {
		return src, err
	}
	from, to, err := quickEndpoints(got.frame)
	if err == nil && (got.action == actShot || from != in.dst || to != in.src) {
		err = fmt.Errorf("answer to %s, action %d: from %s to %s, want from %s to %s", src, got.action, from, to, in.dst, in.src)
	}
	return src, err
}
