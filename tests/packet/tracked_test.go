// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// What connection tracking has seen of a connection (include/uapi/linux/netfilter/nf_conntrack_common.h).
const (
	seenReply = 2
	assured   = 4
	confirmed = 8
)

// track puts a connection into connection tracking: of the client to the frontend, answered by the server, which takes source for
// the client.
func track(t testing.TB, protocol lb.Protocol, client, frontend, server, source netip.AddrPort, status uint32) {
	t.Helper()
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_ACK|unix.NLM_F_CREATE)
	family := uint8(unix.AF_INET)
	if client.Addr().Is6() {
		family = unix.AF_INET6
	}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	r.AddData(tuple(nl.CTA_TUPLE_ORIG, protocol, client, frontend))
	r.AddData(tuple(nl.CTA_TUPLE_REPLY, protocol, server, source))
	r.AddData(nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(status|confirmed)))
	r.AddData(nl.NewRtAttr(nl.CTA_TIMEOUT, nl.BEUint32Attr(1000)))
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		t.Fatalf("track %s to %s: %v", client, frontend, err)
	}
}

func tuple(kind int, protocol lb.Protocol, src, dst netip.AddrPort) *nl.RtAttr {
	source, destination := nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if src.Addr().Is6() {
		source, destination = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	all := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
	ip := all.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(source, src.Addr().AsSlice())
	ip.AddRtAttr(destination, dst.Addr().AsSlice())
	ports := all.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ports.AddRtAttr(nl.CTA_PROTO_NUM, []byte{uint8(protocol)})
	ports.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, src.Port()))
	ports.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, dst.Port()))
	return all
}

// forget clears connection tracking too.
func untrack(t testing.TB) {
	t.Helper()
	check(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
}

// story is packets on a rig beside connection tracking, which is empty as it begins.
type story struct {
	name      string
	protocols []lb.Protocol
	play      func(*rig, world)
}

// playTracked plays stories at every door, on one rig in a network namespace of its own.
func playTracked(t *testing.T, o bpf.Options, stories []story) {
	t.Helper()
	privileged.Namespace(t, func(*os.File) {
		r := newRig(t, o)
		for _, s := range stories {
			for _, w := range everywhere(s.protocols...) {
				untrack(t)
				sub := r.in(t).at(w)
				sub.tables.Drain(false)
				sub.yields(maps.YieldOld | maps.YieldNew)
				if s.play(sub, w); t.Failed() {
					t.Errorf("%s, in world %s", s.name, w)
					return
				}
			}
		}
	})
}

// yields configures what connection tracking is asked for.
func (r *rig) yields(y maps.Yield) {
	r.Helper()
	check(r, r.tables.Configure(maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), Yield: y}))
}

// others is a connection of somebody else to web, as track takes it; the packet is in the middle of it.
func (w world) others(r *rig, n uint16, status uint32) packet {
	r.Helper()
	in := w.packet(at(w.pod(1), n), at(w.vip(10), 80))
	track(r, w.protocol, in.src, in.dst, at(w.pod(2), 8080), in.src, status)
	return in
}

func TestConnectionsOfKubeProxyAreLeftToIt(t *testing.T) {
	playTracked(t, bpf.Options{}, []story{
		{"a connection of kube-proxy is left to it", []lb.Protocol{lb.TCP}, aConnectionOfKubeProxyIsLeftToIt},
		{"a connection that is only tracked is not left", []lb.Protocol{lb.TCP, lb.UDP}, aConnectionThatIsOnlyTrackedIsNotLeft},
		{"without NAT nothing is left", []lb.Protocol{lb.TCP, lb.UDP}, withoutNATNothingIsLeft},
		{"a handshake that began through kube-proxy ends there", []lb.Protocol{lb.TCP}, aHandshakeThatBeganThroughKubeProxyEndsThere},
		{"datagrams stay with a server that answered and is a backend", []lb.Protocol{lb.UDP}, datagramsStayWithAServerThatAnsweredAndIsABackend},
		{"later fragments of kube-proxy's datagrams follow the first", []lb.Protocol{lb.UDP}, laterFragmentsOfKubeProxysDatagramsFollowTheFirst},
		{"an association without flow is left beside kube-proxy", []lb.Protocol{lb.SCTP}, anAssociationWithoutFlowIsLeftBesideKubeProxy},
	})
}

func aConnectionOfKubeProxyIsLeftToIt(r *rig, w world) {
	r.publish(web(w)...)
	in := w.others(r, 41000, seenReply|assured).with("A", "x")
	for _, s := range []step{
		{hook: fromPod, in: in, verdict: "pass_other_nat"},
		{hook: toPod, in: in.reply("A", "y"), verdict: "pass_not_service"},
		{hook: fromPod, in: in.with("FA", ""), verdict: "pass_other_nat"},
		{hook: fromPod, in: in.with("RA", ""), verdict: "pass_other_nat"},
	} {
		s.play(r, 1)
	}
	untrack(r)
	r.expect(fromPod, in, "translate_recover")
}

// Whom nobody translates is nobody else's: it is looked for in the flow table alone, or is made again.
func aConnectionThatIsOnlyTrackedIsNotLeft(r *rig, w world) {
	r.publish(web(w)...)
	in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
	track(r, w.protocol, in.src, in.dst, in.dst, in.src, seenReply|assured)
	r.expect(fromPod, in.with("A", "x"), map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol])
	back := w.packet(at(w.pod(1), 41001), at(w.vip(10), 80))
	track(r, w.protocol, at(w.vip(10), 80), at(w.pod(3), 7), back.src, at(w.vip(10), 80), seenReply|assured) // the other way round
	r.expect(fromPod, back.with("A", "x"), map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol])
}

// Where no NAT is at work, what connection tracking still remembers is translated by nobody.
func withoutNATNothingIsLeft(r *rig, w world) {
	r.publish(web(w)...)
	r.yields(maps.YieldNothing)
	r.expect(fromPod, w.others(r, 41000, seenReply|assured).with("A", "x"), map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol])
	if w.protocol == lb.UDP {
		r.yields(maps.YieldOld)
		r.expect(fromPod, w.others(r, 41001, seenReply), "translate_balance")
	}
}

// A SYN is a new connection, but for one whose handshake is not done: its answer is under way already.
func aHandshakeThatBeganThroughKubeProxyEndsThere(r *rig, w world) {
	r.publish(web(w)...)
	r.expect(fromPod, w.others(r, 41000, 0), "pass_other_nat")
	r.expect(fromPod, w.others(r, 41001, seenReply), "pass_other_nat")
	r.expect(fromPod, w.others(r, 41002, seenReply|assured), "translate_balance")
	r.yields(maps.YieldOld)
	r.expect(fromPod, w.others(r, 41003, 0), "translate_balance")
}

func datagramsStayWithAServerThatAnsweredAndIsABackend(r *rig, w world) {
	r.publish(web(w)...)
	in := w.others(r, 41000, seenReply)
	r.expect(fromPod, in, "pass_other_nat")
	r.expect(fromPod, w.others(r, 41001, 0), "translate_balance")
	other := w.packet(at(w.pod(1), 41002), at(w.vip(10), 80))
	track(r, w.protocol, other.src, other.dst, at(w.pod(7), 8080), other.src, seenReply)
	r.expect(fromPod, other, "translate_balance")
	r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 3))}))
	r.evict() // nobody names the backend that is gone
	for n := range 3 {
		r.tables.Reclaim(time.Now().Add(time.Duration(n+1) * time.Hour))
	}
	r.expect(fromPod, in, "translate_balance")
}

func laterFragmentsOfKubeProxysDatagramsFollowTheFirst(r *rig, w world) {
	r.publish(web(w)...)
	parts := pieces(long(w.others(r, 41000, seenReply)), 7)
	for _, p := range parts {
		r.expect(fromPod, p, "pass_other_nat")
	}
}

// Connection tracking cannot be asked for SCTP: beside kube-proxy, what has no flow and is not new is not ours.
func anAssociationWithoutFlowIsLeftBesideKubeProxy(r *rig, w world) {
	r.publish(web(w)...)
	in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
	data := in
	data.payload = append([]byte{0, 3, 0, 20}, make([]byte, 16)...)
	r.expect(fromPod, data, "pass_other_nat")
	r.expect(fromPod, in, "translate_balance")
	r.expect(fromPod, data, "translate_established")
	r.evict()
	r.yields(maps.YieldOld)
	r.expect(fromPod, data, "translate_recover")
}

// A port that a masquerade of the host's has towards a server is not given away a second time, whoever's the rules are.
func TestSNATKeepsApartFromMasquerade(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		for _, yield := range []maps.Yield{maps.YieldOld, maps.YieldNew} {
			s.evict()
			untrack(s)
			s.configure(snatPorts())
			s.publish(far(w, 2))
			first := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
			s.evict()
			track(s, w.protocol, at(w.outside(6), 6), at(w.outside(10), 80), first.out.dst, first.out.src, seenReply|assured)
			check(s, s.tables.Configure(s.withYield(yield)))
			again := s.remote(first.in, "translate_balance")
			if again.out.src == first.out.src {
				s.Errorf("left as %s, which the masquerade has", again.out.src)
			}
			s.goesOn(again, "translate_established")
		}
		s.configure(snatPorts())
	}, lb.TCP, lb.UDP)
}

func (s site) withYield(y maps.Yield) maps.Config {
	s.Helper()
	c, err := s.tables.Config()
	check(s, err)
	c.Yield = y
	return c
}
