// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// lateService is what clients off the node come by, but no ClusterIP.
func lateService(w world) lb.Decision {
	return w.decide(service{name: "late", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2, 3))})
}

// A client's port has a connection that left a backend, and one to a server that only ClusterIPs lead to: it comes from the client's own node,
// and this one remembers nothing of it.
func TestAnAnswerOfAServerThatWasNotTriedIsNotLate(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(networkOnly(), worlds(lb.TCP)), func(t *testing.T, r *rig, w world) {
		r.publish(lateService(w), w.decide(service{name: "own", address: at(w.vip(11), 80), tiers: tiersOf(w.tier(9090, 5))}))
		first := r.start(w.packet(at(w.pod(1), 41000), at(w.outside(10), 80)))
		second := first.again(r, retryAfter, "translate_retry")
		others := w.packet(at(w.pod(5), 9090), first.in.src).with("SA", "")
		passes := step{hook: toPod, in: others, verdict: "pass_not_service"}
		passes.play(r, 1)
		first.refuses(r)
		second.connects(r)
		passes.play(r, 2)
	})
}

func TestAnAnswerIsNotLateWhenTheFlowHasExpired(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(networkOnly(), worlds(lb.TCP)), func(t *testing.T, r *rig, w world) {
		r.publish(lateService(w))
		first := r.start(w.packet(at(w.pod(1), 41000), at(w.outside(10), 80)))
		first.again(r, retryAfter, "translate_retry")
		first.refuses(r)
		r.waited(2 * time.Minute)
		step{hook: toPod, in: first.out.reply("SA", ""), verdict: "pass_not_service"}.play(r, 1)
	})
}

// A pod of this node gets its answers by its own device: what goes to its address by the network is another's.
func TestAnAnswerByTheNetworkIsNotLateForAPodHere(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(podsOnly(), worlds(lb.TCP)), func(t *testing.T, r *rig, w world) {
		r.publish(lateService(w))
		first := r.start(w.packet(at(w.pod(1), 41000), at(w.outside(10), 80)))
		first.again(r, retryAfter, "translate_retry")
		r.door = networkDoor
		step{hook: toPod, in: first.out.reply("SA", ""), verdict: "pass_not_service"}.play(r, 1)
	})
}

// Whoever sends as the client, and knows no sequence number: both ends discard it. The entry is another one each time, and is not answered, as
// the connection is idle.
func TestForgedPacketsTakeNoConnectionToAnotherBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6, 7)))
		c := r.open(w, 41000)
		c.connects(r)
		stays := func(after time.Duration, verdict string) {
			t.Helper()
			if again := c.again(r, after, verdict); !again.same(c) {
				t.Errorf("left to %s, now to %s", c.out.dst, again.out.dst)
			}
		}
		for range 2 {
			r.expect(fromPod, c.in.with("R", ""), "translate_established")
			stays(0, "translate_balance")
			stays(retryAfter, "translate_established")
			stays(2*time.Minute, "translate_balance") // expired
			stays(retryAfter, "translate_established")
			r.expect(fromPod, c.in.with("RA", ""), "translate_established")
			stays(retryAfter, "translate_balance") // expired and closed
			stays(retryAfter, "translate_established")
		}
		c.goOn(r, "translate_established", "translate_reply")

		// when it has ended, the next one from its port is as any other
		r.expect(fromPod, c.in.with("FA", ""), "translate_established")
		r.expect(toPod, c.out.reply("FA", ""), "translate_reply")
		stays(0, "translate_balance")
		if again := c.again(r, retryAfter, "translate_retry"); again.same(c) {
			t.Errorf("the next connection stays at %s", c.out.dst)
		}
	}, lb.TCP)
}

func TestASYNWithOtherFlagsGoesToNoOtherBackend(t *testing.T) {
	for _, flags := range []string{"SF", "SR"} {
		t.Run(flags, func(t *testing.T) {
			forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
				r.publish(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6, 7)))
				c := r.open(w, 41000)
				odd := talk{c.in.with(flags, ""), c.out.with(flags, "")}
				if again := odd.again(r, retryAfter, "translate_established"); !again.same(c) {
					t.Errorf("left to %s, now to %s", c.out.dst, again.out.dst)
				}
				c = r.open(w, 41001)
				c.refused(r)
				odd = talk{c.in.with(flags, ""), c.out.with(flags, "")}
				if again := odd.again(r, 0, "translate_balance"); !again.same(c) {
					t.Errorf("refused by %s, now to %s", c.out.dst, again.out.dst)
				}
			}, lb.TCP)
		})
	}
}

// A lost SYN says nothing of a backend.
func TestAffinityStaysWithABackendThatWasSilent(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(w.sticky("", 80, nil, 2)))
		c := r.open(w, 41000)
		r.publish(w.decide(w.sticky("", 80, nil, 2, 3, 4, 5, 6, 7, 8, 9)))
		next := uint16(41001)
		stays := func(when string) {
			t.Helper()
			if verdict, backend := w.clientOf(r, 1, next, 80); verdict != "translate_affinity" || backend != c.out.dst {
				t.Errorf("%s: the next connection: %s to %s, not to %s", when, verdict, backend, c.out.dst)
			}
			next++
		}
		second := c.again(r, retryAfter, "translate_retry")
		stays("one SYN was lost")
		third := second.again(r, retryAfter, "translate_retry")
		stays("two were lost")
		third.refused(r) // that is no word of the first one
		fourth := third.again(r, 0, "translate_retry")
		stays("a third backend refused")
		tried := map[netip.AddrPort]bool{c.out.dst: true, second.out.dst: true, third.out.dst: true, fourth.out.dst: true}
		if len(tried) != 4 {
			t.Errorf("tried: %v", tried)
		}
	}, lb.TCP)
}

// Affinity remembers who does not refuse. So a connection whose flow is lost is made again alike.
func TestAffinityLeavesABackendThatRefuses(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(w.sticky("", 80, nil, 2)))
		c := r.open(w, 41000)
		r.publish(w.decide(w.sticky("", 80, nil, 2, 3, 4, 5, 6, 7, 8, 9)))
		for n := range uint16(2) {
			c.refused(r)
			last := c
			c = last.again(r, 0, "translate_retry")
			if c.out.dst == last.out.dst {
				t.Errorf("%s once more", c.out.dst)
			}
			if verdict, backend := w.clientOf(r, 1, 41001+n, 80); verdict != "translate_affinity" || backend != c.out.dst {
				t.Errorf("the next connection: %s to %s, not to %s", verdict, backend, c.out.dst)
			}
		}
		r.evict()
		step{hook: fromPod, in: c.in.with("A", "x"), verdict: "translate_recover", out: became(c.out.with("A", "x"))}.play(r, 1)
	}, lb.TCP)
}
