// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"
	"time"

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
		r.publish(twins(w)...)
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
		r.publish(twins(w)...)
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

// A server's node sees every connection that another node's doors sent there. It takes room only where its client may reach the same
// server by a frontend through this node: by any but a ClusterIP, or by one where ClusterIPs are routed to this node.
func TestAServersNodeRemembersOnlyDirectConnectionsThatMayClash(t *testing.T) {
	const connections = 100
	forEachOf(t, bpf.Options{}, through(networkOnly(), worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		connect := func(verdict string) int {
			r.forget()
			for n := range uint16(connections) {
				straight := w.packet(at(w.pod(1), 42000+n), at(w.pod(2), 8080))
				r.expect(fromPod, straight, verdict)
				r.expect(toPod, straight.reply("SA", "answer"), verdict)
				r.expect(fromPod, straight.with("A", "more"), verdict)
			}
			return len(r.liveFlows())
		}
		twins := twins(w)
		r.publish(twins[0])
		if n := connect("pass_not_service"); n != 0 {
			t.Errorf("%d connections to a server that has a ClusterIP only take %d entries", connections, n)
		}
		r.publish(twins[1])
		if n := connect("pass_direct"); n != connections {
			t.Errorf("%d connections to a server behind a load balancer's address take %d entries", connections, n)
		}
		r.remove(twins[1].Service)
		r.forget()
		for hours := range time.Duration(2) { // first its backend goes, then what the filter has of that
			r.tables.Reclaim(time.Now().Add((1 + hours) * time.Hour))
		}
		if n := connect("pass_not_service"); n != 0 {
			t.Errorf("%d connections take %d entries when the load balancer's address has gone", connections, n)
		}
	})
}

// A client off the node that comes by a ClusterIP may clash from then on, and must not.
func TestOnceClusterIPsAreRoutedToTheNodeDirectConnectionsAreRemembered(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(networkOnly(), worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		straight := w.packet(at(w.pod(1), 42000), at(w.pod(2), 8080))
		r.expect(fromPod, straight.from(at(w.pod(3), 42000)), "pass_not_service")
		r.start(w.packet(at(w.pod(3), 41000), at(w.vip(10), 80)))
		r.expect(fromPod, straight, "pass_direct")
		service := r.start(straight.to(at(w.vip(10), 80)))
		if service.out.src == straight.src || service.out.dst != straight.dst {
			t.Errorf("by the ClusterIP: %s to %s; want another port than the direct connection's", service.out.src, service.out.dst)
		}
		for range 2 {
			service.goOn(r, "translate_established", "translate_reply")
			talk{straight, straight}.goOn(r, "pass_direct", "pass_direct")
		}
	})
}

// An endpoint may have an address of a service CIDR that no Service has: who speaks with it is refused, there as elsewhere.
func TestADirectConnectionIntoAServiceCIDRIsRefused(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(networkOnly(), worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		nobodys := at(w.vip(99), 8080)
		r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf([]netip.AddrPort{nobodys})}))
		r.expect(fromPod, w.packet(at(w.pod(1), 42000), nobodys), "drop_unallocated")
	})
}
