// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// asking is a Service whose datagrams go to the next backend when so many were not answered.
func asking(d lb.Decision, datagrams uint8) lb.Decision { d.UDPRetry = datagrams; return d }

// askedFor makes the datagrams that flows wait for an answer to so much older.
func (r *rig) askedFor(d time.Duration) {
	r.Helper()
	for i := range r.objects.AskedFlows.MaxEntries() {
		var a bpf.NearlbAskedFlow
		check(r, r.objects.AskedFlows.Lookup(i, &a))
		if a.Flow != 0 {
			a.Time -= uint32(d/time.Second) * bpf.JiffiesPerSecond()
			check(r, r.objects.AskedFlows.Put(i, &a))
		}
	}
}

// answered has the server answer.
func (c talk) answered(r *rig) {
	r.Helper()
	answer := c.out.reply("", "answer")
	step{hook: toPod, in: answer, verdict: "translate_reply", out: became(answer.from(c.in.dst).to(c.in.src))}.play(r, 1)
}

// So many datagrams, and a second: the next one goes to another backend, as often as there is one that the flow has not asked since the last
// answer.
func TestDatagramsThatNobodyAnswersGoToTheNextBackendWhereThatIsAskedFor(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(asking(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6, 7)), 3))
		c := r.open(w, 41000)
		tried := []netip.AddrPort{c.out.dst}
		for range 3 {
			for range 2 {
				c.sends(r, "translate_established")
			}
			r.askedFor(retryAfter)
			c = c.sends(r, "translate_retry")
			if slices.Contains(tried, c.out.dst) || c.out.src != c.in.src {
				t.Errorf("as %s to %s after %v", c.out.src, c.out.dst, tried)
			}
			tried = append(tried, c.out.dst)
		}
		if again := c.sends(r, "translate_established"); !again.same(c) {
			t.Errorf("left to %s, now to %s", c.out.dst, again.out.dst)
		}
		c.answered(r)
	}, lb.UDP)
}

// Fewer datagrams, less than a second, an answer in between, a Service that does not ask for it, and no other backend: they stay.
func TestDatagramsThatMayYetBeAnsweredStay(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		stays := func(c talk, why string) {
			t.Helper()
			if again := c.sends(r, "translate_established"); !again.same(c) {
				t.Errorf("%s: left to %s, now to %s", why, c.out.dst, again.out.dst)
			}
		}
		r.publish(asking(webTiers(w, w.tier(8080, 2, 3, 4)), 3))
		few := r.open(w, 41000)
		few.sends(r, "translate_established")
		r.askedFor(retryAfter)
		stays(few, "two datagrams")
		stays(few, "three, and no second has passed since the last one")
		soon := r.open(w, 41001)
		for range 5 {
			stays(soon, "no second has passed")
		}
		talks := r.open(w, 41002)
		for range 3 {
			for range 2 {
				stays(talks, "it was answered")
			}
			r.askedFor(retryAfter)
			talks.answered(r)
		}
		stays(talks, "it was answered")
		r.publish(asking(webTiers(w, w.tier(8080, 2)), 1))
		alone := r.open(w, 41003)
		for range 3 {
			r.askedFor(retryAfter)
			stays(alone, "one backend")
		}
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		other := r.open(w, 41004)
		for range 5 {
			r.askedFor(retryAfter)
			stays(other, "nobody asked for it")
		}
	}, lb.UDP)
}

// A flow that goes on for long: its backend hangs after it has answered, and the ones that it asked before are asked again.
func TestAFlowWhoseBackendHangsLaterAsksTheOthersAgain(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(asking(webTiers(w, w.tier(8080, 2, 3)), 1))
		c := r.open(w, 41000)
		seen := map[netip.AddrPort]bool{c.out.dst: true}
		for range 6 {
			last := c
			c.answered(r)
			c.sends(r, "translate_established")
			r.askedFor(retryAfter)
			if c = c.sends(r, "translate_retry"); c.out.dst == last.out.dst {
				t.Errorf("to %s again", c.out.dst)
			}
			seen[c.out.dst] = true
		}
		if len(seen) != 2 {
			t.Errorf("asked were %v", seen)
		}
	}, lb.UDP)
}

// The client's next flow goes where its last one went.
func TestAffinityMovesWithDatagramsThatNobodyAnswers(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(asking(w.decide(service{name: "web", address: at(w.vip(10), 80), affinity: time.Hour, tiers: tiersOf(w.tier(8080, 2, 3, 4))}), 1))
		c := r.open(w, 41000)
		r.askedFor(retryAfter)
		moved := c.sends(r, "translate_retry")
		if moved.out.dst == c.out.dst {
			t.Errorf("to %s again", c.out.dst)
		}
		if next := r.open(w, 41001); next.out.dst != moved.out.dst {
			t.Errorf("the flow went on to %s, the next one goes to %s", moved.out.dst, next.out.dst)
		}
	}, lb.UDP)
}

// A client off the node whose backends are on other nodes: both entries of the flow move, also where XDP knows the way.
func TestDatagramsThroughSNATGoToTheNextBackend(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(asking(far(w, 2, 3), 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		answer := c.out.reply("", "")
		s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
		for range 2 {
			s.remote(c.in, "translate_established")
		}
		s.askedFor(retryAfter)
		next := s.remote(c.in, "translate_retry")
		if next.out.dst == c.out.dst {
			s.Errorf("to %s again", next.out.dst)
		}
		answer = next.out.reply("", "")
		s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
		s.askedFor(retryAfter)
		s.remote(c.in, "translate_established")
		if n := len(s.liveFlows()); n != 2 {
			s.Errorf("%d entries", n)
		}
	}, lb.UDP)
}
