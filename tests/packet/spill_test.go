// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// fillBlocks opens connections from one port, each to a frontend of its own, until its blocks have no more for it. The last one's first
// entry is elsewhere: it leaves from another port.
func (r *rig) fillBlocks(w world) (plain []talk, spilled talk) {
	r.Helper()
	const frontends = 200
	r.webs(w, frontends)
	for i := range frontends {
		in := w.packet(at(w.pod(1), 41000), w.web(i))
		got, err := r.quick(fromPod, in)
		check(r, err)
		src, dst, err := quickEndpoints(got.frame)
		check(r, err)
		c := talk{in, in.from(src).to(dst)}
		if src != in.src {
			r.counted = r.counters()
			return plain, c
		}
		if !r.established(in) {
			r.Fatalf("connection %d was refused", i)
		}
		plain = append(plain, c)
	}
	r.Fatalf("%d connections of one port are in its blocks", frontends)
	return nil, talk{}
}

// Their packets look there before they read tags. Once they have expired the next ones take their places, and no others.
func TestTheFirstConnectionsOfAPortAreAtItsHomes(t *testing.T) {
	const homes = 4 // FLOW_HOMES
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.webs(w, 2*homes)
		first := r.homesOf(w, 0, homes)
		r.ageAll(24 * time.Hour)
		again := r.homesOf(w, homes, homes)
		if r.counted = r.counters(); len(first) != 1 || !maps.Equal(first, again) || slices.Collect(maps.Values(first))[0] != homes {
			t.Errorf("%d connections are in %v, and as many later ones in %v: entries by the number of their four", homes, first, again)
		}
	}, lb.TCP, lb.UDP)
}

// homesOf opens connections of one port to some frontends, and counts all entries by fours.
func (r *rig) homesOf(w world, first, count int) map[int]int {
	r.Helper()
	for i := range count {
		_, err := r.quick(fromPod, w.packet(at(w.pod(1), 41000), w.web(first+i)))
		check(r, err)
	}
	found := map[int]int{}
	for i, set := range contents[bpf.NearlbFlowSet](r, r.objects.Flows) {
		for way := range set.Ways {
			if phaseOf(set.Ways[way]) == bpf.NearlbFlowPhaseFLOW_LIVE {
				found[(i*len(set.Ways)+way)/count]++
			}
		}
	}
	return found
}

func TestAConnectionBeyondItsPortsBlocksGoesOnBothWays(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		plain, c := r.fillBlocks(w)
		if c.out.src.Addr() != c.in.src.Addr() || c.out.dst.Addr() != w.pod(200) {
			t.Errorf("it leaves as %s to %s", c.out.src, c.out.dst)
		}
		for range 2 {
			c.goOn(r, "translate_established", "translate_reply")
			plain[0].goOn(r, "translate_established", "translate_reply")
			plain[len(plain)-1].goOn(r, "translate_established", "translate_reply")
			step{hook: fromPod, in: c.in, verdict: "translate_established", out: &c.out}.play(r, 3)
		}
		f := failures()[2]
		for _, n := range quotations() {
			r.compareError("forward", toPod, f.of(c.out, w.router(), n), []packet{f.of(c.in, w.router(), n), f.of(c.in, c.in.dst.Addr(), n)})
			sent := c.out.reply("PA", "data")
			r.compareError("reply", fromPod, f.of(sent.from(c.in.dst).to(c.in.src), c.in.src.Addr(), n), []packet{f.of(sent, c.in.src.Addr(), n)})
		}
	}, lb.TCP, lb.UDP)
}

// One of its two entries is evicted, and its port's blocks have room again: its server knows its port.
func TestAConnectionBeyondItsPortsBlocksThatLosesAnEntryKeepsItsPort(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		for name, lost := range map[string]uint8{"the client's": 0, "the server's": alias} {
			r := r.in(t).at(w)
			_, c := r.fillBlocks(w)
			c.goOn(r, "translate_established", "translate_reply")
			plain := 0
			r.editFlows(func(f *bpf.NearlbFlow) {
				own := f.KeyPort == f.TwinPort
				if own {
					plain++
				}
				if own && plain%2 == 0 || !own && f.Flags&alias == lost {
					f.Word &^= 3
				}
			})
			forward := map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol]
			c.goOn(r, forward, "translate_reply")
			c.goOn(r, "translate_established", "translate_reply")
			if t.Failed() {
				t.Fatalf("without %s entry", name)
			}
		}
	}, lb.TCP, lb.UDP)
}

// The server of a connection that goes on knows its port: it takes an entry in the blocks of that port, or none.
func TestAConnectionThatGoesOnGetsNoOtherPortInAFullBlock(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		plain, _ := r.fillBlocks(w)
		in := w.packet(at(w.pod(1), 41000), w.web(199)).with("A", "x")
		got := r.expect(fromPod, in, "translate_recover")
		if src, _ := endpoints(t, got.frame); src != in.src {
			t.Errorf("it goes on from %s", src)
		}
		plain[0].goOn(r, "translate_established", "translate_reply")
	}, lb.TCP)
}

// Both of its entries end with it, and the client's next connection is a new one.
func TestAConnectionBeyondItsPortsBlocksEnds(t *testing.T) {
	type event struct {
		hook, flags string
	}
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		for name, events := range map[string][]event{
			"closed": {{fromPod, "FA"}, {toPod, "FA"}, {fromPod, "A"}},
			"reset":  {{toPod, "RA"}},
		} {
			r := r.in(t).at(w)
			_, c := r.fillBlocks(w)
			c.goOn(r, "translate_established", "translate_reply")
			for _, e := range events {
				if e.hook == toPod {
					r.expect(toPod, c.out.reply(e.flags, ""), "translate_reply")
				} else {
					r.expect(fromPod, c.in.with(e.flags, ""), "translate_established")
				}
			}
			r.age(map[uint16]time.Duration{c.in.src.Port(): 15 * time.Second, c.out.src.Port(): 15 * time.Second})
			r.expect(toPod, c.out.reply("A", "late"), "pass_not_service")
			again := r.start(c.in)
			again.goOn(r, "translate_established", "translate_reply")
			if t.Failed() {
				t.Fatalf("a connection that was %s", name)
			}
		}
	}, lb.TCP)
}

// E2: whatever two pods do with their ports, and however often, all others connect, and keep their connections.
func TestTwoPodsThatFillTheTableKeepNobodyFromConnecting(t *testing.T) {
	const frontends, sets = 100, 64
	forEachWorld(t, withSets(sets), func(t *testing.T, r *rig, w world) {
		r.webs(w, frontends)
		attack := func(ports uint16) {
			for port := range ports {
				for i := range frontends {
					for pod := range 2 {
						r.established(w.packet(at(w.pod(1+pod), 1024+port), w.web(i)))
					}
				}
			}
		}
		attack(6)
		if n := len(r.liveFlows()); n < sets*8*95/100 {
			t.Errorf("%d of %d entries are taken", n, sets*8)
		}
		var others []packet
		for i := range 40 {
			in := w.packet(at(w.pod(3+i%5), uint16(1024+i)), w.web(i))
			if others = append(others, in); !r.established(in) {
				t.Errorf("%s to %s was refused", in.src, in.dst)
			}
		}
		attack(6)
		kept := map[[16]byte]int{}
		for _, f := range r.liveFlows() {
			if f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) == 0 {
				kept[f.Client.Bytes]++
			}
		}
		for pod := range 5 {
			if n := kept[w.pod(3+pod).As16()]; n != 8 {
				t.Errorf("pod %d has %d of its eight connections", 3+pod, n)
			}
		}
		for _, in := range others {
			got, err := r.quick(fromPod, in.with("PA", "more"))
			check(r, err)
			if _, dst, err := quickEndpoints(got.frame); err != nil || dst == in.dst || got.action == actShot {
				t.Errorf("a packet of %s went to %s (%v): its connection is gone", in.src, dst, err)
			}
		}
	}, lb.TCP)
}
