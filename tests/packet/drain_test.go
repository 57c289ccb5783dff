// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

func TestADrainingNode(t *testing.T) {
	playTracked(t, bpf.Options{}, []story{
		{"a draining node keeps its connections and leaves new ones", []lb.Protocol{lb.TCP, lb.UDP}, aDrainingNodeKeepsItsConnectionsAndLeavesNewOnes},
		{"a draining node refuses nothing", []lb.Protocol{lb.TCP, lb.UDP}, aDrainingNodeRefusesNothing},
		{"a draining node leaves its own sockets", []lb.Protocol{lb.TCP, lb.UDP}, aDrainingNodeLeavesItsOwnSockets},
	})
}

func aDrainingNodeKeepsItsConnectionsAndLeavesNewOnes(r *rig, w world) {
	r.publish(web(w)...)
	in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
	old := r.start(in)
	r.tables.Drain(true)
	old.goOn(r, "translate_established", "translate_reply")
	r.expect(fromPod, in, "translate_established") // its SYN again
	next := w.packet(at(w.pod(1), 41001), at(w.vip(10), 80))
	r.expect(fromPod, next, "pass_draining")
	track(r, w.protocol, next.src, next.dst, at(w.pod(2), 8080), next.src, seenReply|assured)
	r.expect(fromPod, next.with("A", "x"), "pass_other_nat")
	r.tables.Drain(false)
	r.expect(fromPod, next.with("A", "x"), "pass_other_nat")
	r.expect(fromPod, w.packet(at(w.pod(1), 41002), at(w.vip(10), 80)), "translate_balance")
	old.goOn(r, "translate_established", "translate_reply")
}

// A connection whose flow was forgotten is nearlb's if nobody else knows it; where that cannot be asked, it is left.
func TestADrainingNodeMakesAForgottenConnectionAgain(t *testing.T) {
	for can, verdict := range map[bool]string{true: "translate_recover", false: "pass_draining"} {
		o := bpf.Options{}
		if !can {
			o.Knobs = map[string]any{"conntrack_lookup": uint8(0)}
			o = only(o, bpf.NearlbProgFromPod, bpf.NearlbProgFromPodSlow, bpf.NearlbProgFromNet, bpf.NearlbProgFromNetSlow)
		}
		playTracked(t, o, []story{{"a forgotten connection", []lb.Protocol{lb.TCP}, func(r *rig, w world) {
			r.publish(web(w)...)
			c := r.start(w.packet(at(w.pod(1), 41000), at(w.vip(10), 80)))
			r.evict()
			r.tables.Drain(true)
			r.expect(fromPod, c.in.with("A", "x"), verdict)
		}}})
	}
}

// Nothing is refused, dropped or answered that kube-proxy may know better.
func aDrainingNodeRefusesNothing(r *rig, w world) {
	r.publish(append(web(w), w.decide(service{name: "none", address: at(w.vip(11), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints}),
		w.decide(service{name: "local", address: at(w.vip(12), 80), action: lb.Drop, reason: lb.ReasonNoLocalEndpoints}))...)
	r.tables.Drain(true)
	ping := packet{src: at(w.pod(1), 0), dst: at(w.vip(10), 0), protocol: w.icmp(), icmp: w.echo(true)}
	in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
	for _, s := range []step{
		{hook: fromPod, in: ping, verdict: "pass_draining"},
		{hook: fromPod, in: in.to(at(w.vip(11), 80)), verdict: "pass_draining"},
		{hook: fromPod, in: in.to(at(w.vip(12), 80)), verdict: "pass_draining"},
		{hook: fromPod, in: in.to(at(w.vip(10), 81)), verdict: "pass_not_service"},  // no such port
		{hook: fromPod, in: in.to(at(w.vip(200), 80)), verdict: "pass_not_service"}, // nobody's address
		{hook: fromPod, in: long(in).cut(9, 600, 1200), verdict: "pass_fragment"},
	} {
		s.play(r, 1)
	}
}

// The node's own sockets connect to the frontend itself.
func aDrainingNodeLeavesItsOwnSockets(r *rig, w world) {
	if w.door != podDoor {
		return
	}
	r.publish(web(w)...)
	in := w.packet(at(w.node(), 41000), at(w.vip(10), 80))
	r.expect(sock, in, "translate_balance")
	r.tables.Drain(true)
	r.expect(sock, in, "pass_draining")
	r.expect(sock, in.to(at(w.vip(200), 80)), "pass_not_service")
	r.tables.Drain(false)
	r.expect(sock, in, "translate_balance")
}

// Configuring the programs, as an agent does when it starts, changes nothing about it.
func TestADrainingNodeStaysSoWhileAgentsComeAndGo(t *testing.T) {
	r := newRig(t, bpf.Options{})
	r.tables.Drain(true)
	r.yields(maps.YieldOld)
	if !r.tables.Reader().Draining() {
		t.Error("new connections are served again")
	}
	if found, err := r.tables.Audit(true); err != nil || len(found) > 0 {
		t.Errorf("the audit found %v, %v", found, err)
	}
	r.tables.Drain(false)
	if r.tables.Reader().Draining() {
		t.Error("still draining")
	}
}
