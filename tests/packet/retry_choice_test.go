// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// F1: whatever tiers a service has, and whichever of its backends do not serve: each SYN that comes again goes to the nearest backend that it
// has not been to, until it has been to four or to all; then it stays.
func TestASYNThatComesAgainGoesToTheNearestBackendThatItHasNotBeenTo(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		rapid.Check(t, func(rt *rapid.T) {
			r := r.in(t).at(w)
			s := drawnTiers(rt, w)
			r.publish(w.decide(s))
			serving := func(a netip.AddrPort) bool { return s.states[a] != lb.Quiet }
			c := r.open(w, rapid.Uint16Range(1024, 65535).Draw(rt, "port"))
			if c.out.dst == c.in.dst {
				rt.Skip("the first choice met none that serves")
			}
			tried := []netip.AddrPort{c.out.dst}
			for range 5 {
				left := nearestLeft(s.tiers, func(a netip.AddrPort) bool { return serving(a) && !slices.Contains(tried, a) })
				if left == nil || len(tried) == 4 {
					if again := c.again(r, retryAfter, "translate_established"); !again.same(c) {
						rt.Fatalf("to %s after %v", again.out.dst, tried)
					}
					continue
				}
				c = c.again(r, retryAfter, "translate_retry")
				if !slices.Contains(left, c.out.dst) {
					rt.Fatalf("to %s after %v, not to one of %v", c.out.dst, tried, left)
				}
				tried = append(tried, c.out.dst)
			}
			if c.connects(r); t.Failed() {
				rt.FailNow()
			}
		})
	}, lb.TCP)
}

// drawnTiers is a service of which some backends do not serve, but one does.
func drawnTiers(t *rapid.T, w world) service {
	s := service{name: "web", address: at(w.vip(10), 80), states: map[netip.AddrPort]lb.State{}, affinity: time.Duration(rapid.IntRange(0, 1).Draw(t, "affinity")) * time.Hour}
	pod := 2
	for range rapid.IntRange(1, 3).Draw(t, "tiers") {
		var tier []netip.AddrPort
		for range rapid.IntRange(1, 5).Draw(t, "backends") {
			a := at(w.pod(pod), 8080)
			if pod++; pod > 3 {
				s.states[a] = rapid.SampledFrom([]lb.State{lb.Active, lb.Active, lb.Draining, lb.Quiet}).Draw(t, "state")
			}
			tier = append(tier, a)
		}
		s.tiers = append(s.tiers, tier)
	}
	return s
}

func nearestLeft(tiers [][]netip.AddrPort, left func(netip.AddrPort) bool) (all []netip.AddrPort) {
	for _, tier := range tiers {
		for _, a := range tier {
			if left(a) {
				all = append(all, a)
			}
		}
		if all != nil {
			return all
		}
	}
	return nil
}

// Other connections' first SYNs are not concerned, and those of a backend that is gone spread over all others.
func TestTheConnectionsOfOneBackendSpreadOverTheOthers(t *testing.T) {
	forEachDoor(t, withSets(1024), func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6)))
		got := map[netip.AddrPort]int{}
		var talks []talk
		for port := range uint16(1000) {
			if c := r.open(w, 20000+port); c.out.dst == at(w.pod(2), 8080) {
				talks = append(talks, c)
			}
		}
		r.waited(retryAfter)
		for _, c := range talks {
			_, dst := endpoints(r, r.expect(fromPod, c.in, "translate_retry").frame)
			got[dst]++
		}
		for n := 3; n <= 6; n++ {
			if got[at(w.pod(n), 8080)] < 20 {
				t.Errorf("of some 200 connections of one backend the others got %v", got)
				break
			}
		}
	}, lb.TCP)
}

// A backend that did not answer is not tried again when the one after it stops serving.
func TestABackendThatDidNotAnswerIsNotTriedAgain(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		states := map[netip.AddrPort]lb.State{}
		publish := func() {
			r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2, 3, 4)), states: states}))
		}
		publish()
		first := r.open(w, 41000)
		second := first.again(r, retryAfter, "translate_retry")
		states[second.out.dst] = lb.Quiet
		publish()
		third := second.again(r, 0, "translate_retry")
		if third.out.dst == first.out.dst || third.out.dst == second.out.dst {
			t.Errorf("to %s after %s and %s", third.out.dst, first.out.dst, second.out.dst)
		}
		states[third.out.dst] = lb.Quiet
		publish()
		if last := third.again(r, 0, "translate_rehome"); last.out.dst != first.out.dst {
			t.Errorf("%s is left, and it goes to %s", first.out.dst, last.out.dst)
		}
	}, lb.TCP)
}

// Traffic policy Local: clients off the node stay with the node's own backends.
func TestASYNStaysInTheListOfItsSide(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		s := service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2, 3, 4, 5))}
		local := w.keys("", w.tier(8080, 2, 3))
		s.external = func(side *lb.Side) {
			side.List, side.Tiers = lb.ListLocal, []lb.Tier{{Name: lb.TierNode, Backends: local}}
		}
		s.lists = map[netip.AddrPort][]lb.List{}
		for _, a := range w.tier(8080, 2, 3) {
			s.lists[a] = []lb.List{lb.ListCluster, lb.ListLocal}
		}
		r.publish(w.decide(s))
		for port := range uint16(8) {
			c := r.start(w.packet(at(w.pod(1), 41000+port), at(w.outside(10), 80)))
			tried := map[netip.AddrPort]bool{c.out.dst: true}
			most := map[bool]int{true: 4, false: 2}[w.door == podDoor]
			for range 5 {
				verdict := "translate_retry"
				if len(tried) == most {
					verdict = "translate_established"
				}
				c = c.again(r, retryAfter, verdict)
				tried[c.out.dst] = true
			}
			if len(tried) != most {
				t.Errorf("%d backends were tried, not %d: %v", len(tried), most, tried)
			}
		}
	}, lb.TCP)
}

func TestAPodThatIsABackendTriesTheOthers(t *testing.T) {
	runRows(t, []row{
		{name: "after itself", doors: podsOnly(), worlds: worlds(lb.TCP), services: func(w world) []lb.Decision { return []lb.Decision{webTiers(w, w.tier(8080, 1), w.tier(8080, 2))} },
			steps: func(w world) []step {
				in, out := webPackets(w)
				looped := in.from(at(w.loopback(), 41000)).to(at(w.pod(1), 8080)).back()
				return []step{
					{hook: fromPod, in: in, verdict: "translate_hairpin", out: &looped},
					doing(func(r *rig) { r.waited(retryAfter) }),
					{hook: fromPod, in: in, verdict: "translate_retry", out: &out},
					{hook: fromPod, in: looped.reply("SA", ""), verdict: "pass_not_service"},
					{hook: toPod, in: out.reply("SA", ""), verdict: "translate_reply", out: became(in.reply("SA", ""))},
				}
			}},
		{name: "and then itself", doors: podsOnly(), worlds: worlds(lb.TCP), services: func(w world) []lb.Decision { return []lb.Decision{webTiers(w, w.tier(8080, 2), w.tier(8080, 1))} },
			steps: func(w world) []step {
				in, out := webPackets(w)
				looped := in.from(at(w.loopback(), 41000)).to(at(w.pod(1), 8080)).back()
				answer := looped.reply("SA", "").back()
				return []step{
					{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
					doing(func(r *rig) { r.waited(retryAfter) }),
					{hook: fromPod, in: in, verdict: "translate_hairpin", out: &looped},
					{hook: toPod, in: out.reply("SA", ""), verdict: "pass_not_service"},
					{hook: fromPod, in: answer, verdict: "translate_hairpin", out: became(answer.from(in.dst).to(in.src).back())},
				}
			}},
	})
}

// A responder that listens and does not answer: the cluster's DNS is asked. It is not asked itself after that.
func TestAQuestionThatTheResponderDoesNotAnswerGoesToTheClustersDNS(t *testing.T) {
	forEachWorld(t, patient(), func(t *testing.T, r *rig, w world) {
		own := startResponder(t)
		r.publish(w.decide(own.before(w, w.tier(53, 3, 4))))
		r.beat(true)
		c := r.start(w.packet(at(w.pod(1), 41000), at(w.vip(10), 53)))
		if c.out.dst != own.at(w) {
			t.Fatalf("it went to %s", c.out.dst)
		}
		second := c.again(r, retryAfter, "translate_retry")
		third := second.again(r, retryAfter, "translate_retry")
		if second.out.dst == third.out.dst || second.out.dst == c.out.dst || third.out.dst == c.out.dst {
			t.Errorf("to %s, %s and %s", c.out.dst, second.out.dst, third.out.dst)
		}
		third.again(r, retryAfter, "translate_established")
	}, lb.TCP)
}

// A node without power answers for none of its backends: a SYN that one of them did not answer goes to another node of the tier, and only then to the
// others there. Whose port is closed has power; nor is it known where a backend was that has gone, whose id another one has.
func TestASYNThatNobodyAnswersGoesToAnotherNode(t *testing.T) {
	forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		dead, other, farther := w.tier(8080, 3, 4, 5, 6), at(w.pod(7), 8080), at(w.pod(8), 8080)
		s := service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2), append(dead[:4:4], other), []netip.AddrPort{farther}),
			states: map[netip.AddrPort]lb.State{at(w.pod(2), 8080): lb.Quiet}, nodes: map[netip.AddrPort]string{other: "n3", farther: "n4"}}
		for _, a := range dead {
			s.nodes[a] = "n2"
		}
		r.publish(w.decide(s))
		same, unknown := 0, 0
		for port := range uint16(32) {
			c := r.open(w, 41000+port)
			if c.out.dst == other {
				continue
			}
			if port%2 == 0 {
				c.refused(r)
				if c = c.again(r, 0, "translate_retry"); c.out.dst == other {
					continue
				}
				same++
				r.editFlows(func(f *bpf.NearlbFlow) { f.Generation++ })
				if c = c.again(r, 0, "translate_retry"); c.out.dst != other {
					unknown++
				}
				continue
			}
			for i, want := range [][]netip.AddrPort{{other}, dead, dead} {
				if c = c.again(r, retryAfter, "translate_retry"); i < 2 && !slices.Contains(want, c.out.dst) {
					t.Errorf("port %d, SYN %d: to %s, not to one of %v", port, i+2, c.out.dst, want)
				}
			}
			if c.out.dst != farther && !slices.Contains(dead, c.out.dst) {
				t.Errorf("port %d: to %s at last", port, c.out.dst)
			}
		}
		if same == 0 {
			t.Error("each refusal led to another node")
		}
		if unknown == 0 {
			t.Error("each backend whose id is another's by now led to another node than that one's")
		}
	}, lb.TCP)
}
