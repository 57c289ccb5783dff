// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// long is a packet with so much data that fragments of 600 bytes make three of it.
func long(p packet) packet {
	p.payload = bytes.Repeat([]byte("0123456789abcdef"), 100)
	return p
}

// pieces are the three fragments of a packet.
func pieces(p packet, id uint32) [3]packet {
	return [3]packet{p.cut(id, 0, 600), p.cut(id, 600, 1200), p.cut(id, 1200, 0)}
}

func TestLaterFragmentsFollowTheFirst(t *testing.T) {
	const id = 0x4711
	runRows(t, []row{
		{name: "of a new flow, its reply and an old one", services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			in, out = long(in), long(out)
			ins, outs := pieces(in, id), pieces(out, id)
			reply := long(out.reply("A", ""))
			back, restored := pieces(reply, id), pieces(reply.from(in.dst), id)
			again, outs2 := pieces(in.with("A", string(in.payload)), id+1), pieces(out.with("A", string(in.payload)), id+1)
			return []step{
				{hook: fromPod, in: ins[0], verdict: "translate_balance", out: &outs[0]},
				{hook: fromPod, in: ins[1], verdict: "translate_fragment", out: &outs[1]},
				{hook: fromPod, in: ins[2], verdict: "translate_fragment", out: &outs[2]},
				{hook: toPod, in: back[0], verdict: "translate_reply", out: &restored[0]},
				{hook: toPod, in: back[2], verdict: "translate_fragment", out: &restored[2]},
				{hook: toPod, in: back[1], verdict: "translate_fragment", out: &restored[1]},
				{hook: fromPod, in: again[0], verdict: "translate_established", out: &outs2[0]},
				{hook: fromPod, in: again[1], verdict: "translate_fragment", out: &outs2[1]},
			}
		}},
		{name: "whose first was not seen", services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			ins, outs := pieces(long(in), id), pieces(long(out), id)
			other := pieces(long(in), id+1)
			return []step{
				{hook: fromPod, in: ins[1], verdict: "drop_fragment"},
				{hook: fromPod, in: ins[0], verdict: "translate_balance", out: &outs[0]},
				{hook: fromPod, in: ins[1], verdict: "translate_fragment", out: &outs[1]},
				{hook: fromPod, in: other[1], verdict: "drop_fragment"},
			}
		}},
		{name: "of packets that no service has", services: web, steps: func(w world) []step {
			in, _ := webPackets(w)
			parts := pieces(long(in.to(at(w.outside(1), 80))), id)
			replies := pieces(long(in.from(at(w.outside(1), 80)).to(in.src)), id)
			return []step{
				{hook: fromPod, in: parts[0], verdict: "pass_not_service"},
				doing(func(r *rig) {
					for _, p := range []packet{parts[1], parts[2]} {
						r.expectPass(fromPod, p)
					}
					r.expectPass(toPod, replies[0])
					r.expectPass(toPod, replies[1])
				}),
			}
		}},
		{name: "of refused packets go nowhere", services: deny(lb.Drop, lb.ReasonNoLocalEndpoints), steps: func(w world) []step {
			in, _ := webPackets(w)
			parts := pieces(long(in), id)
			return []step{
				{hook: fromPod, in: parts[0], verdict: "drop_no_local_endpoints"},
				{hook: fromPod, in: parts[1], verdict: "drop_fragment"},
			}
		}},
		{name: "of a re-homed UDP flow", services: web, worlds: worlds(lb.UDP), steps: func(w world) []step {
			in, out := webPackets(w)
			ins := pieces(long(in), id)
			moved := pieces(long(in.to(at(w.pod(3), 8080))), id)
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				doing(func(r *rig) { r.publish(webOf(w, lb.Quiet, w.tier(8080, 3))) }),
				{hook: fromPod, in: ins[0], verdict: "translate_rehome", out: &moved[0]},
				{hook: fromPod, in: ins[1], verdict: "translate_fragment", out: &moved[1]},
			}
		}},
	})
}

// Behind a fragment header, destination options are part of what is cut: later fragments name them, and nothing else.
func TestDestinationOptionsBehindAFragmentHeaderHideNoProtocol(t *testing.T) {
	const id = 0x4711
	optioned := func(p packet) packet {
		p.inner = []extension{padding(8)}
		return long(p)
	}
	six := slices.DeleteFunc(worlds(lb.TCP, lb.UDP), func(w world) bool { return !w.v6 })
	runRows(t, []row{
		{name: "of a flow and its reply", worlds: six, services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			ins, outs := pieces(optioned(in), id), pieces(optioned(out), id)
			reply := optioned(out.reply("A", ""))
			back, restored := pieces(reply, id), pieces(reply.from(in.dst), id)
			other := pieces(optioned(in), id+1)
			return []step{
				{hook: fromPod, in: ins[0], verdict: "translate_balance", out: &outs[0]},
				{hook: fromPod, in: ins[1], verdict: "translate_fragment", out: &outs[1]},
				{hook: fromPod, in: ins[2], verdict: "translate_fragment", out: &outs[2]},
				{hook: toPod, in: back[0], verdict: "translate_reply", out: &restored[0]},
				{hook: toPod, in: back[1], verdict: "translate_fragment", out: &restored[1]},
				{hook: fromPod, in: other[1], verdict: "drop_fragment"},
			}
		}},
		{name: "of packets that no service has", worlds: six, services: web, steps: func(w world) []step {
			in, _ := webPackets(w)
			parts := pieces(optioned(in.to(at(w.outside(1), 80))), id)
			return []step{doing(func(r *rig) {
				for _, p := range parts {
					r.expectPass(fromPod, p)
					r.expectPass(toPod, p)
				}
			})}
		}},
	})
}

// What IPv6 calls an extension header is a protocol of its own in IPv4, and numbers its packets by itself.
func TestFragmentsOfAnotherProtocolFollowNoDatagram(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(doors(), []world{{protocol: lb.TCP}, {protocol: lb.UDP}}), func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		parts, sent := pieces(long(in), 9), pieces(long(out), 9)
		step{hook: fromPod, in: parts[0], verdict: "translate_balance", out: &sent[0]}.play(r, 1)
		for _, number := range []lb.Protocol{0, 43, 51, 60} {
			other := parts[1]
			other.protocol = number
			if got, _ := r.try(fromPod, other.bytes()); got.verdict != "reject_unknown_port" || got.action != actShot {
				t.Errorf("protocol %d: %s, action %d", number, got.verdict, got.action)
			}
		}
		step{hook: fromPod, in: parts[1], verdict: "translate_fragment", out: &sent[1]}.play(r, 2)
	})
}

func TestFragmentsOfAClashingFlowKeepApart(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		r.start(in)
		second := r.start(in.to(at(w.vip(11), 80)))
		ins, outs := pieces(long(second.in.with("A", "")), 7), pieces(long(second.out.with("A", "")), 7)
		reply := long(second.out.reply("A", ""))
		back, restored := pieces(reply, 8), pieces(reply.from(second.in.dst).to(second.in.src), 8)
		for i, s := range []step{
			{hook: fromPod, in: ins[0], verdict: "translate_established", out: &outs[0]},
			{hook: fromPod, in: ins[1], verdict: "translate_fragment", out: &outs[1]},
			{hook: toPod, in: back[0], verdict: "translate_reply", out: &restored[0]},
			{hook: toPod, in: back[1], verdict: "translate_fragment", out: &restored[1]},
		} {
			s.play(r, i+1)
		}
	}, lb.TCP, lb.UDP)
}

func TestFragmentsOfAPodThatReachesItself(t *testing.T) {
	forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 1))}))
		in := long(w.packet(at(w.pod(1), 41000), at(w.vip(10), 80)))
		looped := in.from(at(w.loopback(), 41000)).to(at(w.pod(1), 8080)).back()
		reply := long(looped.reply("A", "").back())
		ins, outs, back, restored := pieces(in, 1), pieces(looped, 1), pieces(reply, 2), pieces(reply.from(in.dst).to(in.src).back(), 2)
		for i, s := range []step{
			{hook: fromPod, in: ins[0], verdict: "translate_hairpin", out: &outs[0]},
			{hook: fromPod, in: back[0], verdict: "translate_hairpin", out: &restored[0]},
		} {
			s.play(r, i+1)
		}
		for i, pair := range [][2]packet{{ins[1], outs[1]}, {back[1], restored[1]}} {
			got, _ := r.try(fromPod, pair[0].bytes())
			if want := pair[1].bytes(); class(got.verdict) != bpf.Translate || !bytes.Equal(want, got.frame) {
				t.Errorf("later fragment %d: %s\nwant:\n%s\ngot:\n%s", i, got.verdict, show(want), show(got.frame))
			}
		}
	}, lb.TCP, lb.UDP)
}

func (r *rig) expectPass(hook string, p packet) {
	r.Helper()
	if got, _ := r.try(hook, p.bytes()); class(got.verdict) != bpf.Pass {
		r.Errorf("%s %s to %s: %s, want it to pass", hook, p.src, p.dst, got.verdict)
	}
}
