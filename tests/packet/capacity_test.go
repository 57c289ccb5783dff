// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// established takes a connection through its handshake: from then on nobody may evict it. False: it was refused.
func (r *rig) established(in packet) bool {
	r.Helper()
	opened, err := r.quick(fromPod, in.with("S", ""))
	check(r, err)
	if opened.action == actShot {
		return false
	}
	src, dst, err := quickEndpoints(opened.frame)
	check(r, err)
	out := in
	out.src, out.dst = src, dst
	for _, p := range []struct {
		hook string
		packet
	}{{toPod, out.reply("SA", "")}, {fromPod, in.with("A", "")}} {
		got, err := r.quick(p.hook, p.packet)
		check(r, err)
		if got.action == actShot {
			r.Fatalf("%s: a packet of %s to %s was dropped after its first one was not", p.hook, in.src, in.dst)
		}
	}
	return true
}

// webs publishes n services, each with a port of its own at its pods: no connection needs a second entry for that.
func (r *rig) webs(w world, n int) {
	r.Helper()
	for i := range n {
		r.publish(w.decide(service{name: fmt.Sprint("s", i), address: w.web(i), tiers: tiersOf(w.tier(uint16(8080+i), 200))}))
	}
}

// web is the frontend of the i-th of webs.
func (w world) web(i int) netip.AddrPort { return at(w.vip(10+i%16), uint16(80+i/16)) }

// Whatever the addresses and ports, no connection is refused, and none gives way to another, before nine tenths of the table are taken.
func TestTheFlowTableTakesConnectionsUntilItIsNearlyFull(t *testing.T) {
	const sets = 256
	const most = sets * 8 * 9 / 10
	random := rand.New(rand.NewPCG(1, 2))
	keys := []struct {
		name string
		ends func(w world, i int) packet
	}{
		{"random", func(w world, i int) packet {
			return w.packet(at(w.pod(1+random.IntN(100)), uint16(1024+random.IntN(60000))), at(w.vip(10+random.IntN(16)), 80))
		}},
		{"successive ports", func(w world, i int) packet { return w.packet(at(w.pod(1), uint16(32768+i)), at(w.vip(10), 80)) }},
		{"each port to six frontends", func(w world, i int) packet {
			return w.packet(at(w.pod(1), uint16(32768+i/6)), at(w.vip(10+i%6), 80))
		}},
		{"each port to sixteen frontends", func(w world, i int) packet {
			return w.packet(at(w.pod(1), uint16(32768+i/16)), at(w.vip(10+i%16), 80))
		}},
		{"each port to sixty frontends", func(w world, i int) packet {
			return w.packet(at(w.pod(1), uint16(32768+i/60)), w.web(i%60))
		}},
		{"each port to two hundred frontends", func(w world, i int) packet {
			return w.packet(at(w.pod(1), uint16(32768+i/200)), w.web(i%200))
		}},
		{"few ports of many clients", func(w world, i int) packet {
			return w.packet(at(w.pod(1+i%100), uint16(1024+i/100)), at(w.vip(10+i%3), 80))
		}},
	}
	for _, w := range worlds(lb.TCP) {
		r := newRig(t, withSets(sets))
		for _, k := range keys {
			t.Run(fmt.Sprintf("%s, %s", w, k.name), func(t *testing.T) {
				r := r.in(t)
				r.webs(w, 200)
				r.evict()
				opened := map[wire]bool{}
				for i := 0; i%16 != 0 || len(r.liveFlows()) < most; i++ {
					in := k.ends(w, i)
					if opened[wire{in.src, in.dst}] {
						continue
					}
					opened[wire{in.src, in.dst}] = true
					if !r.established(in) {
						t.Fatalf("connection %d was refused, of %d entries %d are taken", len(opened), sets*8, len(r.liveFlows()))
					}
				}
				there := 0
				for _, f := range r.liveFlows() {
					if f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) == 0 {
						there++
					}
				}
				if there != len(opened) {
					t.Errorf("%d of %d connections are in a table for %d", there, len(opened), sets*8)
				}
			})
		}
	}
}

// A client that fills the table is refused when it has all of it, and makes room for others.
func TestAClientThatFillsTheTableMakesRoomForOthers(t *testing.T) {
	forEachWorld(t, withSets(16), func(t *testing.T, r *rig, w world) {
		r.webs(w, 1)
		refused := 0
		for i := range 400 {
			if !r.established(w.packet(at(w.pod(1), uint16(1024+i)), at(w.vip(10), 80))) {
				refused++
			}
		}
		if refused < 400-16*8 {
			t.Errorf("%d of 400 connections of one client were refused in a table for %d", refused, 16*8)
		}
		var others []packet
		for i := range 32 {
			in := w.packet(at(w.pod(2+i%2), uint16(1024+i)), at(w.vip(10), 80))
			if others = append(others, in); !r.established(in) {
				t.Errorf("%s was refused, though another client has the whole table", in.src)
			}
		}
		for i := range 400 { // it comes again, and takes nothing from them
			r.established(w.packet(at(w.pod(1), uint16(2048+i)), at(w.vip(10), 80)))
		}
		for _, in := range others {
			got, err := r.quick(fromPod, in.with("PA", "more"))
			check(r, err)
			if _, dst, err := quickEndpoints(got.frame); err != nil || dst == in.dst || got.action == actShot {
				r.Errorf("a packet of %s went to %s (%v): its connection is gone", in.src, dst, err)
			}
		}
	}, lb.TCP)
}
