// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// retryAfter is how old a SYN is that comes again, and goes to another backend, in all rigs: on a machine that has other things to do, half a
// second passes between any two packets.
const retryAfter = 20 * time.Second

// unhastily makes the programs wait until then.
func unhastily(o bpf.Options) bpf.Options {
	o.Knobs = maps.Clone(o.Knobs)
	if o.Knobs == nil {
		o.Knobs = map[string]any{}
	}
	o.Knobs["retry_milliseconds"] = uint32(retryAfter.Milliseconds())
	o.Knobs["lost_milliseconds"] = uint32(retryAfter.Milliseconds())
	o.Knobs["awaited_milliseconds"] = uint32(retryAfter.Milliseconds())
	o.Knobs["asked_milliseconds"] = uint32(retryAfter.Milliseconds())
	return o
}

// waited makes the last packet of every flow so much older.
func (r *rig) waited(d time.Duration) {
	r.Helper()
	r.editFlows(func(f *bpf.NearlbFlow) { f.Touched -= uint32(d/time.Second) * bpf.JiffiesPerSecond() })
}

// same says whether both leave alike.
func (c talk) same(other talk) bool { return c.out.src == other.out.src && c.out.dst == other.out.dst }

// again sends the connection's SYN once more, so long after the last packet. What comes out is the connection as its server sees it.
func (c talk) again(r *rig, after time.Duration, verdict string) talk {
	r.Helper()
	r.waited(after)
	return c.sends(r, verdict)
}

// sends has the client send the packet that began the connection once more. What comes out is the connection as its server sees it.
func (c talk) sends(r *rig, verdict string) talk {
	r.Helper()
	got := r.expect(fromPod, c.in, verdict)
	src, dst := endpoints(r, got.frame)
	return talk{c.in, c.in.from(src).to(dst)}
}

// refuses wants a late answer of the server to pass as it is to a client on this node, whose host knows no such connection, and resets it. A
// client off the node may have no way to the server: the reset is made here.
func (c talk) refuses(r *rig) {
	r.Helper()
	late := c.out.reply("SA", "")
	if r.door == podDoor || c.out.src != c.in.src { // a port that nearlb chose is nobody's any more
		step{hook: toPod, in: late, verdict: "pass_not_service"}.play(r, 1)
		return
	}
	got := r.expect(toPod, late, "reject_late_answer")
	answer, ok := parse(got.frame)
	if src, dst := endpoints(r, got.frame); !ok || got.action != actRedirect || src != late.dst || dst != late.src || answer.transport[13] != 4 {
		r.Errorf("action %d, answer\n%s", got.action, show(got.frame))
	}
}

// connects has the server answer, and the client go on.
func (c talk) connects(r *rig) {
	r.Helper()
	answer := c.out.reply("SA", "")
	step{hook: toPod, in: answer, verdict: "translate_reply", out: became(answer.from(c.in.dst).to(c.in.src))}.play(r, 1)
	c.goOn(r, "translate_established", "translate_reply")
}

// refused has the server's port closed: it resets the SYN.
func (c talk) refused(r *rig) {
	r.Helper()
	answer := c.out.reply("RA", "")
	step{hook: toPod, in: answer, verdict: "translate_reply", out: became(answer.from(c.in.dst).to(c.in.src))}.play(r, 1)
}

// open is the first SYN of a connection from the client's port to web.
func (r *rig) open(w world, port uint16) talk {
	r.Helper()
	return r.start(w.packet(at(w.pod(1), port), at(w.vip(10), 80)))
}

func webTiers(w world, tiers ...[]netip.AddrPort) lb.Decision {
	return w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiers})
}

// F1: a SYN that comes again goes to another backend.
func TestASYNThatNobodyAnswersGoesToAnotherBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6, 7)))
		for port := range uint16(16) {
			first := r.open(w, 41000+port)
			for _, after := range []time.Duration{0, retryAfter / 4} { // copies
				if c := first.again(r, after, "translate_established"); !c.same(first) {
					t.Errorf("a copy of the SYN leaves as %s to %s", c.out.src, c.out.dst)
				}
			}
			second := first.again(r, retryAfter, "translate_retry")
			if second.out.dst == first.out.dst || second.out.src != first.in.src {
				t.Errorf("left as %s to %s, now as %s to %s", first.out.src, first.out.dst, second.out.src, second.out.dst)
			}
			first.refuses(r)
			second.again(r, 0, "translate_established")
			second.connects(r)
			first.refuses(r)
			if c := second.again(r, retryAfter, "translate_established"); !c.same(second) {
				t.Errorf("a SYN after the answer leaves as %s to %s", c.out.src, c.out.dst)
			}
			second.goOn(r, "translate_established", "translate_reply")
			r.evict()
		}
	}, lb.TCP)
}

// The answer is on its way to the client, which sends its SYN again meanwhile.
func TestASYNWhoseAnswerIsOnItsWayStays(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3)))
		c := r.open(w, 41000)
		r.expect(toPod, c.out.reply("SA", ""), "translate_reply")
		if again := c.again(r, retryAfter, "translate_established"); !again.same(c) {
			t.Errorf("left to %s, now to %s", c.out.dst, again.out.dst)
		}
		c.connects(r)
	}, lb.TCP)
}

func TestWithoutAnotherBackendASYNStays(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		stays := func(c talk, why string) {
			t.Helper()
			for range 3 {
				if again := c.again(r, retryAfter, "translate_established"); !again.same(c) {
					t.Errorf("%s: left to %s, now to %s", why, c.out.dst, again.out.dst)
				}
			}
			c.connects(r)
		}
		r.publish(webTiers(w, w.tier(8080, 2)))
		stays(r.open(w, 41000), "one backend")
		r.publish(webTiers(w, w.tier(8080, 2, 3)))
		stays(r.open(w, 41001).again(r, retryAfter, "translate_retry"), "two, both tried")
		c := r.open(w, 41002)
		r.tables.Drain(true)
		stays(c, "a node that drains")
		r.tables.Drain(false)
	}, lb.TCP)
}

func TestDatagramsThatNobodyAnswersStay(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		c := r.open(w, 41000)
		if again := c.again(r, retryAfter, "translate_established"); !again.same(c) {
			t.Errorf("left to %s, now to %s", c.out.dst, again.out.dst)
		}
	}, lb.UDP)
}

// A closed port answers at once: what comes next from that port of the client is a new SYN.
func TestAConnectionThatWasRefusedTriesAnotherBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6, 7)))
		c := r.open(w, 41000)
		first := c.out.dst
		tried := []netip.AddrPort{first}
		for range 3 {
			c.refused(r)
			c = c.again(r, 0, "translate_retry")
			if slices.Contains(tried, c.out.dst) {
				t.Errorf("%s once more after %v", c.out.dst, tried)
			}
			tried = append(tried, c.out.dst)
		}
		c.refused(r)
		if c = c.again(r, 0, "translate_balance"); c.out.dst != first {
			t.Errorf("after four refusals it begins anew at %s, and did at %s", c.out.dst, first)
		}
		c.connects(r)

		r.publish(webTiers(w, w.tier(8080, 2)))
		c = r.open(w, 41001)
		c.refused(r)
		c.again(r, 0, "translate_balance").connects(r)
	}, lb.TCP)
}

// Who was connected, or gave up by itself, comes back to the backend that its port leads to.
func TestAConnectionThatEndedOtherwiseComesBackToItsBackend(t *testing.T) {
	type event struct{ hook, flags string }
	for name, events := range map[string][]event{
		"the client resets what was answered":  {{toPod, "SA"}, {fromPod, "R"}},
		"the server resets what it has served": {{toPod, "SA"}, {fromPod, "A"}, {toPod, "RA"}},
		"both close":                           {{toPod, "SA"}, {fromPod, "A"}, {fromPod, "FA"}, {toPod, "FA"}},
		"a reset that ended nothing, then both close": {
			{toPod, "RA"}, {toPod, "SA"}, {fromPod, "A"}, {toPod, "A"}, {fromPod, "FA"}, {toPod, "FA"}},
		"a connection that goes on is refused": {{toPod, "R"}},
	} {
		t.Run(name, func(t *testing.T) {
			forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
				r.publish(webTiers(w, w.tier(8080, 2, 3, 4, 5, 6, 7)))
				c := r.open(w, 41000)
				for _, e := range events {
					if e.hook == toPod {
						r.expect(toPod, c.out.reply(e.flags, ""), "translate_reply")
					} else {
						r.expect(fromPod, c.in.with(e.flags, ""), "translate_established")
					}
				}
				if again := c.again(r, retryAfter, "translate_balance"); !again.same(c) {
					t.Errorf("left to %s, now to %s", c.out.dst, again.out.dst)
				}
			}, lb.TCP)
		})
	}
}

func TestALostFlowThatWasRetriedIsMadeAgainWhereItBegan(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4, 5)))
		c := r.open(w, 41000)
		c.again(r, retryAfter, "translate_retry").connects(r)
		r.evict()
		step{hook: fromPod, in: c.in.with("A", "x"), verdict: "translate_recover", out: became(c.out.with("A", "x"))}.play(r, 1)
	}, lb.TCP)
}

// One port of the client towards two frontends of one backend: the second connection has another port, and a second entry.
func TestAConnectionFromAnotherPortTriesAnotherBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		tiers := tiersOf(w.tier(8080, 2), w.tier(8080, 3))
		r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiers}),
			w.decide(service{name: "twin", kind: lb.KindLoadBalancer, address: at(w.vip(11), 80), tiers: tiers}))
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		plain, turned := r.start(in), r.start(in.to(at(w.vip(11), 80)))
		if turned.out.src == in.src {
			t.Fatal("both leave from one port")
		}
		plain.connects(r)
		second := turned.again(r, retryAfter, "translate_retry") // no clash any more
		if second.out.dst != at(w.pod(3), 8080) || second.out.src != in.src {
			t.Errorf("it leaves as %s to %s", second.out.src, second.out.dst)
		}
		turned.refuses(r)
		second.connects(r)
		plain.goOn(r, "translate_established", "translate_reply")
		if n := len(r.liveFlows()); n != 2 {
			t.Errorf("%d entries", n)
		}

		r.evict() // the other way round: both go where one was
		plain, turned = r.start(in), r.start(in.to(at(w.vip(11), 80)))
		moved := plain.again(r, retryAfter, "translate_retry")
		second = turned.again(r, retryAfter, "translate_retry")
		if moved.out.dst != second.out.dst || moved.out.src == second.out.src {
			t.Errorf("they leave as %s to %s, and as %s to %s", moved.out.src, moved.out.dst, second.out.src, second.out.dst)
		}
		plain.refuses(r)
		turned.refuses(r)
		moved.connects(r)
		second.connects(r)
		if n := len(r.liveFlows()); n != 3 {
			t.Errorf("%d entries", n)
		}
	}, lb.TCP)
}

func TestAConnectionBeyondItsPortsBlocksTriesAnotherBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		plain, c := r.fillBlocks(w)
		i := 0
		for w.web(i) != c.in.dst {
			i++
		}
		port := uint16(8080 + i)
		r.publish(w.decide(service{name: fmt.Sprint("s", i), address: w.web(i), tiers: tiersOf(w.tier(port, 200, 201))}))
		moved := c.again(r, retryAfter, "translate_retry")
		if moved.out.dst != at(w.pod(201), port) {
			t.Errorf("left to %s, now to %s", c.out.dst, moved.out.dst)
		}
		c.refuses(r)
		moved.connects(r)
		plain[0].connects(r)
	}, lb.TCP)
}
