// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// twins are two services with the same one backend. Clients off the node have a frontend of one of them.
func twins(w world) []lb.Decision {
	return []lb.Decision{
		w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2))}),
		w.decide(service{name: "twin", kind: lb.KindLoadBalancer, address: at(w.vip(11), 80), tiers: tiersOf(w.tier(8080, 2))}),
	}
}

// talk is one connection as the test saw it start: what the client sends and what the backend sees.
type talk struct{ in, out packet }

// start opens a connection; the way it leaves is the program's choice.
func (r *rig) start(in packet) talk {
	r.Helper()
	got, _ := r.try(fromPod, in.bytes())
	src, dst := endpoints(r, got.frame)
	return talk{in, in.from(src).to(dst)}
}

// goOn sends packets of the connection both ways; forward and reply are the verdicts they must get.
func (c talk) goOn(r *rig, forward, reply string) {
	r.Helper()
	step{hook: fromPod, in: c.in.with("A", "go"), verdict: forward, out: became(c.out.with("A", "go"))}.play(r, 1)
	answer := c.out.reply("PA", "yes")
	step{hook: toPod, in: answer, verdict: reply, out: became(answer.from(c.in.dst).to(c.in.src))}.play(r, 2)
}

func TestOneClientPortTowardsTwoFrontendsOfOneBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		first, second := r.start(in), r.start(in.to(at(w.vip(11), 80)))
		if first.out.src != in.src || first.out.dst != at(w.pod(2), 8080) {
			t.Errorf("first flow: %s to %s", first.out.src, first.out.dst)
		}
		if second.out.dst != first.out.dst || second.out.src.Addr() != in.src.Addr() || second.out.src == first.out.src {
			t.Errorf("second flow: %s to %s; want another source port", second.out.src, second.out.dst)
		}
		for range 2 {
			first.goOn(r, "translate_established", "translate_reply")
			second.goOn(r, "translate_established", "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

func TestOneClientPortTowardsAFrontendAndItsBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		straight := in.to(at(w.pod(2), 8080))
		t.Run("service first", func(t *testing.T) {
			r := r.in(t)
			r.publish(twins(w)...)
			service := r.start(in)
			direct := r.start(straight)
			if service.out.src != in.src || direct.out.src == in.src || direct.out.src.Addr() != in.src.Addr() || direct.out.dst != straight.dst {
				t.Errorf("service flow from %s, direct one from %s to %s; want the direct one from another port", service.out.src, direct.out.src, direct.out.dst)
			}
			for range 2 {
				service.goOn(r, "translate_established", "translate_reply")
				direct.goOn(r, "translate_direct", "translate_direct")
			}
		})
		t.Run("direct first", func(t *testing.T) {
			r := r.in(t)
			r.publish(twins(w)...)
			step{hook: fromPod, in: straight, verdict: "pass_direct"}.play(r, 1)
			step{hook: toPod, in: straight.reply("SA", "x"), verdict: "pass_direct"}.play(r, 2)
			service := r.start(in)
			if service.out.src == in.src || service.out.src.Addr() != in.src.Addr() || service.out.dst != straight.dst {
				t.Errorf("service flow: %s to %s; want another source port", service.out.src, service.out.dst)
			}
			for range 2 {
				service.goOn(r, "translate_established", "translate_reply")
				talk{straight, straight}.goOn(r, "pass_direct", "pass_direct")
			}
		})
	}, lb.TCP, lb.UDP)
}

// A third and a fourth flow find ports of their own as well, and a lost flow does not take another's port.
func TestManyFrontendsOfOneBackendFromOnePort(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		var talks []talk
		used := map[netip.AddrPort]netip.AddrPort{}
		for n := range 6 {
			name := string(rune('a' + n))
			r.publish(w.decide(service{name: name, address: at(w.vip(20+n), 80), tiers: tiersOf(w.tier(8080, 2))}))
			c := r.start(w.packet(at(w.pod(1), 41000), at(w.vip(20+n), 80)))
			if other, ok := used[c.out.src]; ok {
				t.Fatalf("flows to %s and %s both leave from %s", other, c.in.dst, c.out.src)
			}
			used[c.out.src] = c.in.dst
			talks = append(talks, c)
		}
		for _, c := range talks {
			c.goOn(r, "translate_established", "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// Another client's own port may be the one that a clash chose.
func TestAChosenSourcePortDoesNotMeetTheClientsOwn(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		first, second := r.start(in), r.start(in.to(at(w.vip(11), 80)))
		third := r.start(in.from(second.out.src)) // the client opens a connection from that very port
		if third.out.src == second.out.src {
			t.Fatalf("two flows leave from %s to %s", third.out.src, third.out.dst)
		}
		for _, c := range []talk{first, second, third} {
			c.goOn(r, "translate_established", "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// A connection whose source port was changed is remembered as long as any other: idle for an hour, and through a flood.
func TestAClashingConnectionLastsAsLongAsAnother(t *testing.T) {
	forEachDoor(t, unhurried(8), func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		talks := []talk{r.start(in), r.start(in.to(at(w.vip(11), 80))), r.start(in.to(at(w.pod(2), 8080)))}
		verdicts := [][2]string{{"translate_established", "translate_reply"}, {"translate_established", "translate_reply"}, {"translate_direct", "translate_direct"}}
		goOn := func() {
			t.Helper()
			for i, c := range talks[:2] {
				c.goOn(r, verdicts[i][0], verdicts[i][1])
			}
		}
		goOn()
		goOn()
		talks[2].goOn(r, verdicts[2][0], verdicts[2][1])
		for i := range 10 * 8 * 8 {
			r.try(fromPod, w.packet(at(w.pod(10+i/50), uint16(1024+i%50)), at(w.vip(10), 80)).bytes())
		}
		goOn()
		r.ageAll(2 * time.Second) // UDP: no question alone
		goOn()
		r.ageAll(map[lb.Protocol]time.Duration{lb.TCP: time.Hour, lb.UDP: 2 * time.Minute}[w.protocol])
		goOn()
	}, lb.TCP, lb.UDP)
}
