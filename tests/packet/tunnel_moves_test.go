// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
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
