// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"os"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// The SYN of a carried connection goes to another server of the same node, as its first one does not answer in time: the answer that comes late is
// refused there, as the client may have no way to that server.
func TestALateAnswerToACarriedSYNIsRefused(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		s.serve(w, nil, 2, 3)
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		var servers []netip.AddrPort
		for _, verdict := range []string{"translate_balance", "translate_retry"} {
			got, err := s.run(fromPod, in.bytes())
			check(s, err)
			if server := w.named(got.frame); got.verdict == verdict {
				servers = append(servers, server)
				s.other.goes(fromPod, got.frame, routed(s.told(w, in).to(server)), "translate_balance", actUnspec)
			}
			s.waited(retryAfter)
		}
		if len(servers) != 2 || servers[0] == servers[1] {
			s.Fatalf("the SYN went to %v", servers)
		}
		late := in.to(servers[0]).reply("SA", "")
		got, err := s.other.run(toPod, late.bytes())
		check(s, err)
		answer, ok := parse(got.frame)
		if src, dst := endpoints(s, got.frame); got.verdict != "reject_late_answer" || !ok || got.action != actRedirect || src != late.dst || dst != late.src || answer.transport[13] != 4 {
			s.Errorf("%s, action %d, answer\n%s", got.verdict, got.action, show(got.frame))
		}
		s.answersBack(w, talk{in, in.to(servers[1])}, "SA", "")
		in = in.from(at(w.outside(2), 41000))
		got, err = s.run(fromPod, in.bytes())
		check(s, err)
		server := w.named(got.frame)
		s.other.goes(fromPod, got.frame, routed(s.told(w, in).to(server)), "translate_balance", actUnspec)
		direct := in.to(map[netip.AddrPort]netip.AddrPort{servers[0]: servers[1], servers[1]: servers[0]}[server]).reply("SA", "")
		s.other.goes(toPod, direct.bytes(), direct.bytes(), "pass_not_service", actUnspec)
	}, lb.TCP)
}

// What leaves the tunnel takes the shortcut to its server, and is counted as it came.
func TestWhatLeavesTheTunnelTakesTheShortcut(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		r := newRig(t, bpf.Options{Knobs: map[string]any{"tunnel_there": uint8(1), "shortcut_there": uint8(1)}})
		h := hall{site: newSite(t, r)}
		h.by, h.server = h.clients, addDevice(t, "server")
		for _, w := range worlds(lb.TCP, lb.UDP) {
			w.door = networkDoor
			sub := h
			sub.rig = h.rig.in(t).at(w)
			if w.protocol == lb.TCP {
				addNeighbour(t, h.nodes, w.node1())
			}
			sub.leads(w, 2, h.server)
			four, six := world{}, world{v6: true}
			check(t, sub.tables.Configure(maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), Tunnel: tunnelNodes(), Shortcut: maps.ShortcutOn,
				Devices: map[uint32]maps.DeviceSources{uint32(h.nodes.Attrs().Index): {}, uint32(h.clients.Attrs().Index): {}},
				Node4:   four.node2(), Node6: six.node2(), NodePort4: four.node2(), NodePort6: six.node2()}))
			way := &nodePair{site: site{rig: &rig{TB: t}}, other: sub.site, way: lb.OffNodeCarry}
			way.serveOn(sub.site, w, nil, 2)
			in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
			for i, in := range []packet{in, in.with("A", "go")} {
				want := in.to(server)
				if i == 0 {
					want = w.clamped(want, false)
				}
				got, err := sub.run(fromPod, w.answeredBy(in, server))
				check(t, err)
				if got.action != actRedirect || !bytes.Equal(got.frame[12:], routed(want)[12:]) {
					t.Errorf("%s, packet %d: %s, action %d\nwant\n%s\ngot\n%s", w, i, got.verdict, got.action, show(routed(want)), show(got.frame))
				}
			}
		}
	})
}

// Nobody is answered at an address that no host has: what comes from there opens nothing that goes on, and is the host's, which drops it.
func TestNoHostsAddressOpensAConnectionThatGoesOn(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		sources := []string{"224.0.0.251", "239.255.255.255", "255.255.255.255", "127.0.0.1", "0.0.0.0", "0.1.2.3"}
		if w.v6 {
			sources = []string{"ff02::fb", "ff0e::1", "::1", "::"}
		}
		for _, s.way = range []lb.OffNode{lb.OffNodeSNAT, lb.OffNodeCarry} {
			s.serve(w, nil, 2)
			for _, source := range sources {
				in := w.packet(at(netip.MustParseAddr(source), 41000), at(w.outside(10), 80))
				if got, err := s.run(fromPod, in.bytes()); err != nil || got.action != actUnspec {
					s.Errorf("way %v, from %s: %s, action %d, %v", s.way, source, got.verdict, got.action, err)
				}
			}
			if all := s.liveFlows(); len(all) != 0 {
				s.Errorf("way %v: flows %+v", s.way, all)
			}
		}
	}, lb.TCP, lb.UDP)
}
