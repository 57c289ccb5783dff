// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// clamped is what the tunnel leaves of a SYN's maximum segment size: by headers, the cookie and, towards the backend's node, the option.
func (w world) clamped(p packet, forward bool) packet {
	if w.protocol == lb.TCP {
		p.mss = uint16(cmp.Or(w.mtu, 1500)) - map[bool]uint16{false: 36 + 40, true: 56 + 60}[w.v6]
		if w.cookie != 0 {
			p.mss -= 12
		}
		if forward {
			p.mss -= map[bool]uint16{false: 12, true: 24}[w.v6]
		}
	}
	return p
}

// carried is a connection through the tunnel: what the client sends and what its server gets.
func (s nodePair) carried(w world, in packet, server netip.AddrPort) talk {
	s.Helper()
	c := talk{in, in.to(server)}
	there := s.enters(fromPod, in.bytes(), w.forward(routed(in), server), "translate_balance")
	s.other.goes(fromPod, there, routed(w.clamped(c.out, false)), "translate_balance", actUnspec)
	return c
}

// answers takes a packet of the server to the client.
func (s nodePair) answersBack(w world, c talk, flags, text string) {
	s.Helper()
	answer := c.out.reply(flags, text)
	seen := answer.from(c.in.dst).to(c.in.src)
	if answer.flags == "SA" {
		seen = w.clamped(seen, true)
	}
	back := s.other.enters(toPod, answer.bytes(), w.back(seen.bytes()), "translate_reply")
	s.goes(fromPod, back, routed(seen), "translate_reply", actRedirect)
}

// goesOnThrough sends both ways.
func (s nodePair) goesOnThrough(w world, c talk) {
	s.Helper()
	in := c.in.with("A", "go")
	there := s.enters(fromPod, in.bytes(), w.forward(routed(in), c.out.dst), "translate_established")
	s.other.goes(fromPod, there, routed(c.out.with("A", "go")), "translate_established", actUnspec)
	s.answersBack(w, c, "PA", "yes")
}

// What is in front of a maximum segment size is passed over, at even and odd places, up to the last one.
func TestTheSizeOfSegmentsIsFoundBehindOtherOptions(t *testing.T) {
	nothing, end := layers.TCPOption{OptionType: layers.TCPOptionKindNop}, layers.TCPOption{OptionType: layers.TCPOptionKindEndList}
	other := func(data ...byte) layers.TCPOption { return layers.TCPOption{OptionType: 254, OptionData: data} }
	size := func(data ...byte) layers.TCPOption {
		return layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionData: data}
	}
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		for i, row := range []struct {
			ahead []layers.TCPOption
			found bool
		}{
			{[]layers.TCPOption{nothing}, true},
			{[]layers.TCPOption{nothing, nothing}, true},
			{slices.Repeat([]layers.TCPOption{nothing}, 36), true},
			{[]layers.TCPOption{other(2, 4, 5, 5)}, true},
			{[]layers.TCPOption{other(), nothing, other(make([]byte, 27)...), other()}, true},
			{[]layers.TCPOption{end}, false},
			{[]layers.TCPOption{nothing, end, nothing}, false},
			{[]layers.TCPOption{size(5)}, false}, // of a length that it cannot have
		} {
			in := w.packet(at(w.outside(1), uint16(41000+i)), at(w.outside(10), 80))
			in.ahead = row.ahead
			out := in.to(at(w.pod(2), 8080))
			there := s.enters(fromPod, in.bytes(), w.forward(routed(in), out.dst), "translate_balance")
			if row.found {
				out = w.clamped(out, false)
			}
			s.other.goes(fromPod, there, routed(out), "translate_balance", actUnspec)
		}
	}, lb.TCP)
}

func TestAClientOffTheNodeKeepsItsAddressThroughTheTunnel(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		for name, kind := range map[lb.Kind]netip.AddrPort{
			lb.KindLoadBalancer: at(w.outside(10), 80), lb.KindClusterIP: at(w.vip(10), 80), lb.KindExternalIP: at(w.outside(11), 80), lb.KindNodePort: at(w.node1(), 30080),
		} {
			s.evict()
			s.other.evict()
			s.serve(w, func(o *service) { o.kind, o.address = name, kind }, 2)
			c := s.carried(w, w.packet(at(w.outside(1), 41000), kind), at(w.pod(2), 8080))
			s.answersBack(w, c, "SA", "")
			for range 2 {
				s.goesOnThrough(w, c)
			}
			for of, flags := range map[*rig]uint8{s.rig: uint8(bpf.NearlbFlowFlagsFLOW_CARRY), s.other.rig: uint8(bpf.NearlbFlowFlagsFLOW_CARRIED)} {
				if all := of.liveFlows(); len(all) != 1 || all[0].Flags != flags {
					s.Errorf("flows %+v, want one of flags %d", all, flags)
				}
			}
		}
	}, lb.TCP, lb.UDP)
}
