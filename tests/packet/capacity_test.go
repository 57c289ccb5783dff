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

// E1: whatever the addresses and ports, no connection is refused, and none gives way to another, before nine tenths of the table are taken.
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

// flooded is a table with connections of clients in it, through a flood of questions that are answered: each of a source of its own, as forged ones are,
// in ten times as many as there is room for.
type flooded struct {
	kept      []talk       // before the flood
	newcomers []packet     // amid it
	ask       func(packet) // sends the first packet of a flow of the flood, and its answer
	open      func(packet) talk
	goesOn    func(talk)
}

// play wants each question to be answered, newcomers to connect, and whoever was there to go on.
func (f flooded) play(t testing.TB, w world, to netip.AddrPort, room int) {
	t.Helper()
	count := 10 * room
	for i := 0; i < count && !t.Failed(); i++ {
		f.ask(w.packet(at(w.pod(10+i%200), uint16(1024+i/200)), to))
		if i%(count/len(f.newcomers)) == 0 && i > 2*room {
			c := f.open(f.newcomers[i*len(f.newcomers)/count])
			f.goesOn(c)
			f.goesOn(c)
			f.kept = append(f.kept, c)
		}
	}
	for _, c := range f.kept {
		if f.goesOn(c); t.Failed() {
			return
		}
	}
}

// tcpOf is the same world for TCP.
func tcpOf(w world) world { w.protocol = lb.TCP; return w }

// A question that has its answer shows of its client no more than that it is said to have asked. So a flood of such from forged sources, to a server
// that answers each, keeps nobody from connecting, and takes no connection that goes on.
func TestAFloodThatIsAnsweredKeepsNobodyFromConnecting(t *testing.T) {
	const sets = 16
	forEachDoor(t, unhurried(sets), func(t *testing.T, r *rig, w world) {
		tcp, to := tcpOf(w), at(w.vip(10), 80)
		r.publish(w.decide(service{name: "questions", address: to, tiers: tiersOf(w.tier(8080, 2))}))
		r.publish(tcp.decide(service{name: "web", address: to, tiers: tiersOf(w.tier(8080, 3))}))
		f := flooded{open: r.start, goesOn: func(c talk) { c.goOn(r, "translate_established", "translate_reply") }}
		f.ask = func(in packet) { r.start(in).answered(r) }
		for i := range uint16(16) {
			in := map[bool]world{false: w, true: tcp}[i%2 == 0].packet(at(w.pod(1), 41000+i), to)
			c := r.start(in)
			f.goesOn(c)
			f.goesOn(c)
			f.kept = append(f.kept, c)
			f.newcomers = append(f.newcomers, in.from(at(w.pod(4), 42000+i)))
		}
		f.play(r, w, to, sets*8)
	}, lb.UDP)
}

// Nor does one through SNAT, where each such flow has a port towards the server as well: there are fewer of these than entries.
func TestAFloodThroughSNATThatIsAnsweredKeepsNobodyFromConnecting(t *testing.T) {
	const sets = 16
	forEachSite(t, unhurried(sets), func(s site, w world) {
		tcp, to := tcpOf(w), at(w.outside(10), 80)
		d := far(tcp, 3)
		d.Service.Name = "web-tcp"
		d.Frontends[0].Port.Service.Name = "web-tcp"
		s.publish(far(w, 2), d)
		f := flooded{goesOn: func(c talk) { s.goesOn(c, "translate_established") }}
		f.open = func(in packet) talk { return s.remote(in, "translate_balance") }
		f.ask = func(in packet) {
			c := f.open(in)
			answer := c.out.reply("PA", "yes")
			s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
		}
		for i := range uint16(8) {
			in := map[bool]world{false: w, true: tcp}[i%2 == 0].packet(at(w.outside(1), 41000+i), to)
			c := f.open(in)
			f.goesOn(c)
			f.goesOn(c)
			f.kept = append(f.kept, c)
			f.newcomers = append(f.newcomers, in.from(at(w.outside(2), 42000+i)))
		}
		f.play(s, w, to, sets*8/2)
	}, lb.UDP)
}

// What one client may have of the table stays as it is for datagrams that go back and forth: who has half of it loses before others.
func TestAClientWithHalfOfTheTableLosesBeforeOthers(t *testing.T) {
	forEachWorld(t, unhurried(16), func(t *testing.T, r *rig, w world) {
		r.webs(w, 1)
		opens := func(client netip.AddrPort) bool {
			in := w.packet(client, w.web(0))
			got, _ := r.try(fromPod, in.bytes())
			if got.verdict != "translate_balance" {
				return false
			}
			src, dst := endpoints(r, got.frame)
			c := talk{in, in.from(src).to(dst)}
			c.goOn(r, "translate_established", "translate_reply")
			c.goOn(r, "translate_established", "translate_reply")
			return true
		}
		for i := range 64 {
			opens(at(w.pod(1), uint16(1024+i)))
			opens(at(w.pod(20+i), 1024))
		}
		others := func() (n int) {
			for _, f := range r.liveFlows() {
				if addressOf(f.Client) != w.pod(1) {
					n++
				}
			}
			return n
		}
		before := others()
		for i := range 16 {
			if client := at(w.pod(100+i), 1024); !opens(client) {
				t.Errorf("%s was refused, though another client has half of the table", client)
			}
		}
		if now := others(); now != before+16 {
			t.Errorf("others have %d flows, want their %d and 16", now, before)
		}
	}, lb.UDP)
}
