// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A server's answers to its clients are no connections to backends, even where the client's address is a backend's as well:
// nothing is remembered for them.
func TestAnswersOfServersLeaveNoFlow(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		for n := range uint16(50) {
			answer := w.packet(at(w.pod(5), 53), at(w.pod(2), 20000+n)).with("SA", "answer")
			r.expect(fromPod, answer, "pass_not_service")
			r.expect(toPod, answer.reply("A", "next"), "pass_not_service")
			r.expect(toPod, answer, "pass_not_service")
		}
		if n := len(r.liveFlows()); n != 0 {
			t.Errorf("%d flows were made", n)
		}
	}, lb.TCP, lb.UDP)
}

// Direct traffic is not the load balancer's: it passes also where there is no room to remember it.
func TestDirectTrafficPassesAFullTable(t *testing.T) {
	forEachDoor(t, unhurried(1), func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		var talks []talk
		for port := range uint16(8) {
			c := r.start(w.packet(at(w.pod(1), 41000+port), at(w.vip(10), 80)))
			c.goOn(r, "translate_established", "translate_reply")
			c.goOn(r, "translate_established", "translate_reply")
			talks = append(talks, c)
		}
		for port := range uint16(16) {
			straight := w.packet(at(w.pod(3), 42000+port), at(w.pod(2), 8080))
			r.expectPass(fromPod, straight)
			r.expectPass(toPod, straight.reply("SA", "x"))
			r.expectPass(fromPod, straight.with("A", "y"))
		}
		for _, c := range talks {
			c.goOn(r, "translate_established", "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// A connection that is only remembered makes room for one that is translated.
func TestDirectTrafficMakesRoomForServices(t *testing.T) {
	forEachDoor(t, withSets(1), func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		for port := range uint16(8) {
			straight := w.packet(at(w.pod(3), 42000+port), at(w.pod(2), 8080))
			talk{straight, straight}.goOn(r.passing(straight), "pass_direct", "pass_direct")
			talk{straight, straight}.goOn(r, "pass_direct", "pass_direct")
		}
		for port := range uint16(8) {
			r.expect(fromPod, w.packet(at(w.pod(1), 41000+port), at(w.vip(10), 80)), "translate_balance")
		}
	}, lb.TCP, lb.UDP)
}

// passing sends the first packet of a direct connection.
func (r *rig) passing(p packet) *rig {
	r.Helper()
	r.expect(fromPod, p, "pass_direct")
	return r
}
