// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A test frame is of no TCP socket, so its SYN is always a first one: tests/hosts has real sockets whose SYNs come again. Here is what becomes of such a
// SYN once its next server was chosen (sendsAgain), and of a connection that went elsewhere: the same entries, made by a client off the node.

// steered is a connection of a socket of the host, as that sends it to the first server and as the second server sees it.
func (s site) steered(w world) (c talk) {
	s.Helper()
	first := at(w.pod(3), 8080)
	s.publish(far(w, 2, 3), w.decide(service{name: "other", kind: lb.KindLoadBalancer, address: first, tiers: tiersOf(w.tier(8080, 2)), remote: true}))
	c = s.remote(w.packet(at(w.own(), 41000), first), "translate_balance")
	s.editFlows(func(f *bpf.NearlbFlow) { f.Side = uint8(bpf.NearlbSideIndexSIDE_INTERNAL) })
	s.hostThere(true)
	return c
}

// hostThere says whether programs look for such connections.
func (s site) hostThere(yes bool) {
	s.edit(func(settings *bpf.NearlbSettings) {
		settings.Routed &^= uint8(bpf.NearlbRoutedROUTED_HOST)
		if yes {
			settings.Routed |= uint8(bpf.NearlbRoutedROUTED_HOST)
		}
	})
}

// loseSecond frees second entries, as if they had been evicted.
func (s site) loseSecond() {
	s.Helper()
	s.editFlows(func(f *bpf.NearlbFlow) {
		if f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) != 0 {
			f.Word &^= uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK)
		}
	})
}

// freeSets frees the entries of so many sets that takeRest took, from one on.
func (s site) freeSets(first, sets uint32) {
	s.Helper()
	for i := first; i < first+sets; i++ {
		var set bpf.NearlbFlowSet
		check(s, s.objects.Flows.Lookup(i, &set))
		for way := range set.Ways {
			if set.Ways[way].Frontend == (bpf.NearlbAddress{}) {
				set.Ways[way].Word &^= uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK)
			}
		}
		check(s, s.objects.Flows.Put(i, &set))
		s.untag(i, set)
	}
}

// sendsAgain runs the program for the host's own connections over a SYN, as it is when a SYN has come again and its next server was chosen.
func (s site) sendsAgain(in packet, to netip.AddrPort) outcome {
	s.Helper()
	context := struct {
		_     [48]byte // of struct __sk_buff in front of cb, in which is struct handed_slow
		tries uint8
		hook  uint8
		_     [2]byte
		port  uint32
		id    uint32
		tried uint32
		_     uint32
	}{hook: uint8(bpf.NearlbHookHOOK_TO_NET), id: s.suspect(to).ID}
	frame := in.bytes()
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+1536), Context: context}
	code, err := s.objects.HostOut.Run(&o)
	check(s, err)
	got := outcome{action: action(int32(code)), frame: o.DataOut}
	now := s.counters()
	for c, value := range now {
		if value.Packets != s.counted[c].Packets {
			got.verdict += c.verdict
		}
	}
	s.counted = now
	return got
}

// becomes runs one packet at a hook.
func (s site) becomes(hook string, in []byte, want []byte, verdict string, told action) {
	s.Helper()
	got, err := s.run(hook, in)
	check(s, err)
	if got.verdict != verdict || got.action != told || !bytes.Equal(got.frame, want) {
		s.Errorf("at %s: verdict %s, want %s; action %d, want %d; packet out (-want +got)\n%s", hook, got.verdict, verdict, got.action, told, cmp.Diff(show(want), show(got.frame)))
	}
}

// passes runs one packet that is left as it is.
func (s site) passes(hook string, p packet, verdict string) {
	s.Helper()
	s.becomes(hook, p.bytes(), p.bytes(), verdict, actUnspec)
}

func TestASYNOfTheHostGoesToTheServerThatWasChosen(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2, 3))
		syn := w.packet(at(w.own(), 41000), at(w.pod(3), 8080))
		got := s.sendsAgain(syn, at(w.pod(2), 8080))
		src, dst := endpoints(s, got.frame)
		c := talk{syn, syn.from(src).to(dst)}
		if got.verdict != "translate_retry" || got.action != actRedirect || !bytes.Equal(got.frame, c.out.bytes()) ||
			src.Addr() != w.own() || !snatPorts().Contains(src.Port()) || dst != at(w.pod(2), 8080) {
			s.Fatalf("verdict %s, action %d, packet out\n%s", got.verdict, got.action, show(got.frame))
		}
		answer := c.out.reply("SA", "")
		s.becomes(fromNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
		s.becomes(toNet, c.in.with("A", "go").bytes(), c.out.with("A", "go").bytes(), "translate_established", actRedirect)
	}, lb.TCP)
}

// The way to the next server takes less than the device that the socket's packets leave by.
func TestASYNOfTheHostGoesAWayThatTakesLess(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2, 3))
		lo, err := netlink.LinkByIndex(1) // by which test frames leave
		check(s, errors.Join(err, netlink.LinkSetMTU(lo, 9000)))
		if got := s.sendsAgain(w.packet(at(w.own(), 41000), at(w.pod(3), 8080)), at(w.pod(2), 8080)); got.verdict != "translate_retry" {
			s.Errorf("verdict %s", got.verdict)
		}
	}, lb.TCP)
}

// Its packets are found by the socket's address and port alone. Where their blocks are full, idle connections make room there, though others would go
// to blocks that their frontend names.
func TestPacketsOfTheHostAreFoundWhereverThereIsRoom(t *testing.T) {
	const sets, block = 64, 8
	forEachSite(t, withSets(sets), func(s site, w world) {
		s.publish(far(w, 2, 3))
		syn := w.packet(at(w.own(), 41000), at(w.pod(3), 8080))
		for first := uint32(0); first < sets; first += block {
			s.evict()
			s.takeRest(w, 2*time.Minute)
			s.freeSets(first, block)
			got := s.sendsAgain(syn, at(w.pod(2), 8080))
			if got.verdict != "translate_retry" {
				s.Fatalf("verdict %s", got.verdict)
			}
			src, dst := endpoints(s, got.frame)
			data := syn.with("PA", "hello")
			s.becomes(toNet, data.bytes(), data.from(src).to(dst).bytes(), "translate_established", actRedirect)
		}
	}, lb.TCP)
}

// The server that was chosen is behind no device: the SYN goes to the socket's own, whose answer is the connection's.
func TestASYNOfTheHostThatStaysLeavesNothing(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		own := at(w.own(), 8080)
		s.publish(w.decide(service{name: "own", kind: lb.KindClusterIP, address: at(w.vip(20), 80), tiers: tiersOf([]netip.AddrPort{own})}))
		if got := s.sendsAgain(c.in, own); got.verdict != "pass_not_service" || got.action != actUnspec || !bytes.Equal(got.frame, c.in.bytes()) {
			s.Errorf("verdict %s, action %d, packet out\n%s", got.verdict, got.action, show(got.frame))
		}
		s.passes(fromNet, c.in.reply("SA", ""), "pass_unknown_reply")
		s.passes(toNet, c.in.with("A", ""), "pass_not_service")
	}, lb.TCP)
}

func TestAConnectionOfTheHostThatWentElsewhereGoesOnThere(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		answer := c.out.reply("SA", "")
		s.becomes(fromNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
		for range 2 {
			s.becomes(toNet, c.in.with("PA", "hello").bytes(), c.out.with("PA", "hello").bytes(), "translate_established", actRedirect)
			answer = c.out.reply("PA", "hello yourself")
			s.becomes(fromNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
		}
		s.passes(toNet, c.out.with("PA", "hello"), "pass_not_service") // as it comes by the device once more
		s.passes(toNet, c.in.from(at(w.own(), 41001)).with("PA", "hello"), "pass_not_service")
		s.passes(toNet, c.in.to(at(w.pod(4), 8080)).with("PA", "hello"), "pass_not_service")
		s.passes(toNet, c.in.from(at(w.pod(9), 41000)).with("PA", "hello"), "pass_not_service")

		s.hostThere(false) // nobody looks
		s.passes(toNet, c.in.with("PA", "hello"), "pass_not_service")
	}, lb.TCP)
}

// What the first server sends at last would be the connection's own to the host. It is told to forget it, and that goes to itself.
func TestALateAnswerToTheHostIsReset(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		for _, late := range []packet{c.in.reply("SA", ""), c.in.reply("PA", "hello")} {
			got, err := s.run(fromNet, late.bytes())
			check(s, err)
			p, ok := parse(got.frame)
			src, dst := endpoints(s, got.frame)
			if got.verdict != "reject_late_answer" || got.action != actRedirect || !ok || src != late.dst || dst != late.src || p.transport[13]&4 == 0 {
				s.Errorf("verdict %s, action %d, packet out\n%s", got.verdict, got.action, show(got.frame))
			}
		}
		refused := c.in.reply("RA", "")
		s.becomes(fromNet, refused.bytes(), refused.bytes(), "reject_late_answer", actShot)
		s.hostThere(false)
		s.passes(fromNet, c.in.reply("SA", ""), "pass_unknown_reply")
	}, lb.TCP)
}

// A pod is not heard where it speaks for a server of another node, whoever looks at where packets come from.
func TestAPodDoesNotAnswerTheHostForAServerOfAnotherNode(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		pods := s.rig.at(world{v6: w.v6, protocol: w.protocol})
		for _, forged := range []packet{c.out.reply("SA", ""), c.out.reply("RA", ""), c.out.reply("PA", "hello")} {
			got, err := pods.run(fromPod, forged.bytes())
			check(s, err)
			if got.verdict != "pass_not_service" || got.action != actUnspec || !bytes.Equal(got.frame, forged.bytes()) {
				s.Errorf("%s: action %d, packet out\n%s", got.verdict, got.action, show(got.frame))
			}
		}
	}, lb.TCP)
}

// The socket is gone, and another one has its port towards the first server: that begins there, whatever became of the connection before.
func TestANewConnectionOfTheHostBeginsWithItsOwnServer(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		for _, before := range [][]string{{}, {"<SA"}, {"<SA", ">A", "<PA"}, {"<SA", ">A", "<FA", ">FA", "<A"}, {"<SA", ">A", ">RA"}} {
			c := s.steered(w)
			for _, sent := range before {
				if sent[0] == '<' {
					_, err := s.run(fromNet, c.out.reply(sent[1:], "").bytes())
					check(s, err)
				} else {
					s.becomes(toNet, c.in.with(sent[1:], "").bytes(), c.out.with(sent[1:], "").bytes(), "translate_established", actRedirect)
				}
			}
			s.passes(toNet, c.in, "pass_not_service")
			if flows := len(s.liveFlows()); flows != 0 {
				s.Errorf("after %s: %d entries", before, flows)
			}
			s.passes(fromNet, c.in.reply("SA", ""), "pass_unknown_reply")
			s.passes(toNet, c.in.with("A", ""), "pass_not_service")
			s.hostThere(false)
		}
	}, lb.TCP)
}

// The second entry was evicted: it is made again, and the server sees the port that it knows.
func TestAConnectionOfTheHostWhoseSecondEntryIsGoneGoesOn(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		s.loseSecond()
		s.becomes(toNet, c.in.with("PA", "hello").bytes(), c.out.with("PA", "hello").bytes(), "translate_recover", actRedirect)
		answer := c.out.reply("PA", "hello yourself")
		s.becomes(fromNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "translate_reply", actUnspec)
	}, lb.TCP)
}

// It waits for room where the table is full: its own server would end it.
func TestAConnectionOfTheHostThatLosesItsSecondEntryWaitsForRoom(t *testing.T) {
	forEachSite(t, withSets(64), func(s site, w world) {
		c := s.steered(w)
		s.loseSecond()
		s.takeRest(w, 0)
		waits := c.in.with("A", "go")
		s.becomes(toNet, waits.bytes(), waits.bytes(), "drop_flows_full", actShot)
		s.freeSets(0, 64)
		s.becomes(toNet, c.in.with("A", "go").bytes(), c.out.with("A", "go").bytes(), "translate_recover", actRedirect)
	}, lb.TCP)
}

// The same where there is no way to its server for a while.
func TestAConnectionOfTheHostThatLosesItsSecondEntryWaitsForAWay(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		s.loseSecond()
		s.route(w, &netlink.Route{Type: unix.RTN_UNREACHABLE})
		waits := c.in.with("A", "go")
		s.becomes(toNet, waits.bytes(), waits.bytes(), "drop_no_source", actShot)
		s.route(w, &netlink.Route{LinkIndex: s.nodes.Attrs().Index, Gw: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()})
		s.becomes(toNet, waits.bytes(), c.out.with("A", "go").bytes(), "translate_recover", actRedirect)
	}, lb.TCP)
}

// The number of its server is another one's by now.
func TestAConnectionOfTheHostIsNotTakenToWhoHasItsServersNumber(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		s.loseSecond()
		s.editFlows(func(f *bpf.NearlbFlow) { f.Generation++ })
		s.passes(toNet, c.in.with("A", "go"), "pass_not_service")
	}, lb.TCP)
}

// A server of the node's own network listens at the port that the socket has, or the filter takes the two for such: what leaves from there is looked at
// as a server's answer first.
func TestAConnectionOfTheHostFromAPortOfAServerGoesOn(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		s.publish(w.decide(service{name: "own", kind: lb.KindClusterIP, address: at(w.vip(20), 80), tiers: tiersOf([]netip.AddrPort{c.in.src})}))
		for _, change := range changes(w) {
			s.becomes(toNet, change(c.in.with("PA", "hello")).bytes(), change(c.out.with("PA", "hello")).bytes(), "translate_established", actRedirect)
		}
		s.passes(toNet, c.in.to(at(w.pod(4), 8080)).with("PA", "hello"), "pass_not_service")
	}, lb.TCP)
}

// A router tells the host about what it sent, as it sent it: so the path's MTU is that of the way to the server that it has.
func TestErrorsReachTheHostAboutTheConnectionThatItHas(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		for _, f := range failures() {
			for _, n := range quotations() {
				said := f.of(c.out.with("A", "text"), w.addr("172.31.0.", "fd00:31::", 2), n)
				s.becomes(fromNet, said.bytes(), f.of(c.in.with("A", "text"), c.in.dst.Addr(), n).bytes(), "translate_icmp", actUnspec)
			}
		}
	}, lb.TCP)
}

// What does not fit the way to its server is answered to the socket, with the MTU of that way and about what the socket sent; by the device that it
// was to leave by, so that no filter of reverse paths minds.
func TestWhatDoesNotFitTheWayOfAConnectionOfTheHostIsAnswered(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		c := s.steered(w)
		check(s, netlink.LinkSetMTU(s.nodes, 1400))
		s.forgetWays()
		in := c.in.with("PA", string(make([]byte, 1400)))
		frame := in.bytes()
		copy(frame[6:12], []byte{2, 0, 0, 0, 0, 7})
		got, err := s.run(toNet, frame)
		check(s, err)
		p, ok := parse(got.frame)
		if got.verdict != "reject_too_big" || got.action != actRedirect || !ok || p.checkOuter(got.frame[ethernetHeader:]) != nil {
			s.Fatalf("verdict %s, action %d, packet out\n%s", got.verdict, got.action, show(got.frame))
		}
		kind, code, mtu := packetTooBig(in)
		src, dst := addressesOf(p)
		message := p.transport
		if src != in.dst.Addr() || dst != in.src.Addr() || message[0] != kind || message[1] != code || !bytes.Equal(message[4:8], []byte{0, 0, byte(mtu >> 8), byte(mtu)}) {
			s.Errorf("answer from %s to %s\n%s", src, dst, show(got.frame))
		}
		if !bytes.HasPrefix(frame[ethernetHeader:], message[8:]) || !bytes.Equal(got.frame[:6], frame[6:12]) {
			s.Errorf("quotes (-sent +quoted)\n%s", cmp.Diff(frame[ethernetHeader:][:len(message)-8], message[8:]))
		}
		s.becomes(toNet, c.in.with("PA", "small").bytes(), c.out.with("PA", "small").bytes(), "translate_established", actRedirect)
		check(s, netlink.LinkSetMTU(s.nodes, 1500))
	}, lb.TCP)
}
