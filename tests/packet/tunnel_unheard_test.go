// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// unheardNodes are those of the tunnel, of which n1 has answered no hello.
func unheardNodes() maps.Tunnel {
	t := tunnelNodes()
	n1 := t.Nodes["n1"]
	n1.Unheard = true
	t.Nodes["n1"] = n1
	return t
}

// bringsNoClients is the test of a node that has answered no hello: whoever passes for it opens no connection here, takes none over, and says
// nothing of any. Its own clients, if there are any, come by SNAT with their first packet, and what it brought before goes on.
func bringsNoClients(t *testing.T) {
	forEachWayThere(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		s.tellApart(tunnelNodes(), unheardNodes())
		in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
		c := s.goesBySNAT(w, in, s.returned(w, in, server, "translate_balance"), server, "translate_uncarried")
		s.goesOn(c, "translate_established")
		forged := func(in packet, option netip.AddrPort) []byte {
			d := w.forward(in.bytes(), option)
			d.from = at(w.node1(), 0x9000)
			return d.frame()
		}
		s.other.refuses(fromPod, forged(in, netip.AddrPort{}), "drop_tunnel_unheard")
		if w.protocol == lb.TCP {
			s.other.refuses(fromPod, forged(in.with("A", "x"), server), "drop_tunnel_unheard")
		}
		if all := s.other.liveFlows(); len(all) != 0 {
			s.Errorf("flows %+v on the other node, want none", all)
		}
	}, lb.TCP, lb.UDP)
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.answersBack(w, c, "SA", "")
		s.tellApart(tunnelNodes(), unheardNodes())
		s.goesOnThrough(w, c)
		moved := c.in.with("A", "moved")
		s.other.goes(fromPod, moved.bytes(), c.out.with("A", "moved").bytes(), "translate_established", actUnspec)
		answer := c.out.reply("PA", "here")
		seen := answer.from(c.in.dst).to(c.in.src)
		for what, inner := range map[string]packet{
			"a packet": c.in.with("A", "go"),
			"an error": failures()[0].of(seen, w.router(), quotations()[0]),
		} {
			d := w.forward(inner.bytes(), netip.AddrPort{})
			d.from = at(w.node1(), 0x9000)
			if s.other.refuses(fromPod, d.frame(), "drop_tunnel_unheard"); s.Failed() {
				s.Errorf("%s of a client that comes by this node now", what)
			}
		}
		s.other.goes(toPod, answer.bytes(), seen.bytes(), "translate_reply", actUnspec)
	}, lb.TCP, lb.UDP)
}

func TestANodeThatHasAnsweredNoHelloBringsNoClients(t *testing.T) { bringsNoClients(t) }

func TestANodeThatHasAnsweredNoHelloBringsNoClientsAtXDP(t *testing.T) { bringsNoClients(t) }
