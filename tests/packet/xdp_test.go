// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// takes wants the program at XDP to send a packet, as out, by itself.
func (s site) takes(in, out packet, verdict string) {
	s.Helper()
	s.takesFrame(in.bytes(), routed(out), verdict)
}

// takesFrame wants it to send a frame so: what is translated_established towards the nodes, replies to the clients.
func (s site) takesFrame(in, out []byte, verdict string) {
	s.Helper()
	s.counted = s.counters()
	got, err := s.runXDP(in)
	check(s, err)
	if got.action == xdpPass && s.mayConfirm() {
		got, err = s.runXDP(in)
		check(s, err)
	}
	if got.verdict != verdict || got.action != xdpRedirect || !bytes.Equal(got.frame[12:], out[12:]) {
		s.Errorf("action %d, verdict %q, want %s\n%s\n(-want +got)\n%s", got.action, got.verdict, verdict, show(in), cmp.Diff(show(out), show(got.frame)))
		return
	}
	mac := map[bool]netlink.Link{true: s.nodes, false: s.clients}[verdict == "translate_established"].Attrs().HardwareAddr
	if want := slices.Concat(podMAC, mac); !bytes.Equal(got.frame[:12], want) {
		s.Errorf("%s: addresses of the frame are %x, want %x", show(in), got.frame[:12], want)
	}
}

// mayConfirm says that a packet may be the one in eight seconds that goes by TC: a bound of eight seconds lies between now and the rig's
// first packet, whichever processor remembers the way, and whoever asked for it last. Jiffies are right to about a second.
func (s site) mayConfirm() bool {
	second := bpf.JiffiesPerSecond()
	return (s.began-2*second)/(8*second) != (bpf.Jiffies()+second)/(8*second)
}

// passesXDP wants a frame to pass as it is; where there is no program at XDP, all do.
func (s site) passesXDP(what string, frame []byte) {
	s.Helper()
	if s.noXDP {
		return
	}
	s.counted = s.counters()
	got, err := s.runXDP(frame)
	check(s, err)
	if got.action != xdpPass {
		s.Errorf("%s: action %d, verdict %s, want to see it pass\n%s", what, got.action, got.verdict, show(frame))
	}
}

func (s site) takesBoth(c talk) {
	s.Helper()
	s.takes(c.in.with("A", "more"), c.out.with("A", "more"), "translate_established")
	answer := c.out.reply("PA", "yes")
	s.takes(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
}

// A connection through SNAT that goes on leaves from XDP, both ways, with its way remembered and without.
func TestAConnectionThroughSNATGoesOnAtXDP(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		for range 2 {
			s.takesBoth(c)
		}
		s.forgetWays()
		s.takesBoth(c)
	}, lb.TCP, lb.UDP)
}

// What leaves by the device that it came by is sent back, or redirected where the device is one that would keep it lying (a veth in its
// driver).
func TestWhatLeavesAsItCameAtXDPIsSentBackOrRedirected(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		s.takesBoth(c)
		slots := s.slotsOfWays()
		for redirects, want := range map[bool]action{false: xdpTx, true: xdpRedirect} {
			s.serveXDPBy(bpf.XDPDevice{Ifindex: loopback, MAC: hostMAC, Takes: true, Redirects: redirects}, s.nodes, s.clients)
			var last action
			for try := 0; last != want && try < 100; try++ { // a way is asked for anew after an eighth of a second
				s.takesBoth(c)
				s.counted = s.counters()
				s.leadBack(slots)
				got, err := s.runXDP(c.in.with("A", "more").bytes())
				check(s, err)
				last = got.action
			}
			if last != want {
				t.Errorf("%s: with redirects %t: action %d, want %d", w, redirects, last, want)
			}
		}
	}, lb.TCP)
}

// Both entries of a flow whose packets all leave from XDP say when the last one came.
func TestAFlowLivesOnPacketsAtXDP(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		for _, forward := range []bool{true, false} {
			old := map[uint16]uint32{}
			s.editFlows(func(f *bpf.NearlbFlow) {
				f.Touched -= 5 * bpf.JiffiesPerSecond()
				old[f.KeyPort] = f.Touched
			})
			if answer := c.out.reply("PA", "yes"); forward {
				s.takes(c.in.with("A", "more"), c.out.with("A", "more"), "translate_established")
			} else {
				s.takes(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
			}
			for _, f := range s.liveFlows() {
				if f.Touched-old[f.KeyPort] < 4*bpf.JiffiesPerSecond() {
					t.Errorf("%s: the entry of port %d is %d jiffies younger", w, f.KeyPort, f.Touched-old[f.KeyPort])
				}
			}
		}
	}, lb.TCP, lb.UDP)
}

// What is not simple passes as it came, whatever it would be.
func TestXDPLeavesWhatIsNotSimple(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		s.takesBoth(c)
		in := c.in.with("A", "x")
		answer := c.out.reply("A", "y")
		for _, p := range []packet{in, answer} {
			for name, change := range changes(w) {
				if name == "options" || name == "extension header" {
					s.passesXDP(name, change(p).bytes())
				}
			}
			first := long(p)
			s.passesXDP("first fragment", first.cut(7, 0, 600).bytes())
			s.passesXDP("later fragment", first.cut(7, 600, 1200).bytes())
			tagged := p
			tagged.vlan = true
			s.passesXDP("VLAN", tagged.bytes())
			s.passesXDP("for another host", slices.Concat(podMAC, p.bytes()[6:]))
			s.passesXDP("its last hop", ending(p))
			s.passesXDP("cut", p.bytes()[:40])
			if w.protocol == lb.TCP {
				for _, flags := range []string{"S", "SA", "FA", "RA"} {
					s.passesXDP(flags, p.with(flags, "").bytes())
				}
			}
			if w.protocol == lb.UDP {
				s.passesXDP("a datagram shorter than its packet", shortened(p.bytes()))
			}
			s.passesXDP("partial checksum", unsummed(p.bytes()))
		}
		if w.protocol == lb.TCP { // a datagram opens a connection
			s.passesXDP("another client's", c.in.from(at(w.outside(2), 41000)).with("A", "x").bytes())
		}
		s.passesXDP("another server's", c.out.reply("A", "y").from(at(w.pod(9), 8080)).bytes())
		s.takesBoth(c)
	}, lb.TCP, lb.UDP)
}

// unsummed has the sum of the pseudo header where the checksum was: what a virtual device hands on for another one to complete.
func unsummed(frame []byte) []byte {
	frame = bytes.Clone(frame)
	p, _ := parse(frame)
	field := map[lb.Protocol]int{lb.TCP: 16, lb.UDP: 6}[p.protocol]
	length := uint16(len(p.transport))
	pseudo := slices.Concat(p.src, p.dst, []byte{0, uint8(p.protocol), byte(length >> 8), byte(length)})
	binary.BigEndian.PutUint16(frame[len(frame)-len(p.transport)+field:], uint16(sum(0, pseudo)))
	return frame
}

// shortened has the datagram be a byte shorter than the packet.
func shortened(frame []byte) []byte {
	frame = bytes.Clone(frame)
	p, _ := parse(frame)
	at := len(frame) - len(p.transport) + 4
	binary.BigEndian.PutUint16(frame[at:], binary.BigEndian.Uint16(frame[at:])-1)
	return frame
}

// A way that XDP cannot take is TC's, and XDP takes it when it can.
func TestXDPLeavesWaysThatItCannotTake(t *testing.T) {
	for name, in := range map[string]struct {
		change func(site, world) (back func())
		size   int
	}{
		"a device that sends nothing for others": {change: func(s site, w world) func() {
			s.serveXDP()
			return func() { s.serveXDP(s.clients, s.nodes) }
		}},
		"an unknown neighbour": {change: func(s site, w world) func() {
			check(s, netlink.NeighDel(&netlink.Neigh{LinkIndex: s.nodes.Attrs().Index, IP: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()}))
			return func() { addNeighbour(s, s.nodes, w.addr("172.31.0.", "fd00:31::", 2)) }
		}},
		"an MTU that is too small": {size: 1400, change: func(s site, w world) func() {
			check(s, netlink.LinkSetMTU(s.nodes, 1400))
			return func() { check(s, netlink.LinkSetMTU(s.nodes, 1500)) }
		}},
		"no route": {change: func(s site, w world) func() {
			s.route(w, &netlink.Route{Type: unix.RTN_UNREACHABLE})
			return func() {
				s.route(w, &netlink.Route{LinkIndex: s.nodes.Attrs().Index, Gw: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()})
			}
		}},
		"a device that XDP does not serve": {change: func(s site, w world) func() {
			_, err := s.objects.SetXDPDevices(nil)
			check(s, err)
			return func() { s.serveXDP(s.clients, s.nodes) }
		}},
		"programs that are switched off": {change: func(s site, w world) func() {
			s.edit(func(x *bpf.NearlbSettings) { x.Disabled = 1 })
			return func() { s.edit(func(x *bpf.NearlbSettings) { x.Disabled = 0 }) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, bpf.Options{}, func(s site, w world) {
				s.publish(far(w, 2))
				c := s.connect(w, 1)
				back := in.change(s, w)
				s.forgetWays()
				s.passesXDP(name, c.in.with("A", string(make([]byte, max(in.size, 1)))).bytes())
				s.passesXDP(name+", remembered", c.in.with("A", string(make([]byte, max(in.size, 1)))).bytes())
				back()
				s.forgetWays()
				s.takesBoth(c)
			}, lb.TCP, lb.UDP)
		})
	}
}

// Now and then a packet of each flow goes by TC, which has the kernel ask whether a silent neighbour is still there.
func TestAPacketInEightSecondsLeavesXDPForTC(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		onOneProcessor(s)
		s.publish(far(w, 2))
		s.forgetWays() // the world before made ways old; an entry of this one may have the same number and word
		c := s.connect(w, 1)
		s.takesBoth(c)
		s.editWays(func(way *bpf.NearlbXdpWay) { way.When -= 8 * bpf.JiffiesPerSecond() })
		s.passesXDP("the first one after eight seconds", c.in.with("A", "x").bytes())
		s.takes(c.in.with("A", "more"), c.out.with("A", "more"), "translate_established")
	}, lb.TCP, lb.UDP)
}

// onOneProcessor keeps the test where it is: each processor remembers ways of its own.
func onOneProcessor(t testing.TB) {
	t.Helper() // the thread is the test's own, as its namespace is
	var own unix.CPUSet
	check(t, unix.SchedGetaffinity(0, &own))
	first := 0
	for !own.IsSet(first) {
		first++
	}
	own.Zero()
	own.Set(first)
	check(t, unix.SchedSetaffinity(0, &own))
}

// editWays hands every way that is remembered to edit and writes it back.
func (r *rig) editWays(edit func(*bpf.NearlbXdpWay)) {
	r.Helper()
	for _, slot := range r.slotsOfWays() {
		r.editWaysOf(slot, edit)
	}
}

// slotsOfWays are the slots that have a way of some processor. To read them all takes longer than a way lasts on a slow machine.
func (r *rig) slotsOfWays() (slots []uint32) {
	r.Helper()
	var slot uint32
	var ways []bpf.NearlbXdpWay
	for all := r.objects.XdpWays.Iterate(); all.Next(&slot, &ways); {
		if slices.ContainsFunc(ways, isWay) {
			slots = append(slots, slot)
		}
	}
	return slots
}

func isWay(way bpf.NearlbXdpWay) bool { return way.Ifindex != 0 }

func (r *rig) editWaysOf(slot uint32, edit func(*bpf.NearlbXdpWay)) {
	r.Helper()
	var ways []bpf.NearlbXdpWay
	check(r, r.objects.XdpWays.Lookup(slot, &ways))
	for i := range ways {
		if isWay(ways[i]) {
			edit(&ways[i])
		}
	}
	check(r, r.objects.XdpWays.Put(slot, ways))
}

// An entry whose second one is another flow's by now is mended by TC.
func TestXDPLeavesAFlowThatLostAnEntry(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		s.takesBoth(c)
		s.editFlows(func(f *bpf.NearlbFlow) {
			if f.Flags&alias != 0 {
				f.Word &^= 3
			}
		})
		s.passesXDP("towards the server", c.in.with("A", "x").bytes())
		s.passesXDP("from the server", c.out.reply("A", "y").bytes())
		s.goesOn(c, map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_balance"}[w.protocol])
		s.takesBoth(c)
	}, lb.TCP, lb.UDP)
}

// The first datagram of a client after an answer shows that the flow is no question alone: TC notes that.
func TestXDPLeavesTheFirstDatagramAfterAnAnswer(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		answer := c.out.reply("", "yes")
		s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
		s.passesXDP("the first datagram after the answer", c.in.bytes())
		s.sends(c.in, c.out, "translate_established")
		s.takesBoth(c)
	}, lb.UDP)
}

// While somebody asks for bytes of flows everything goes by TC, where tcpdump sees it: what goes on, what opens a connection, what is dropped.
func TestXDPLeavesAllWhileBytesOfFlowsAreCounted(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		s.takesBoth(c)
		s.counts(time.Minute)
		s.passesXDP("towards the server", c.in.with("A", "x").bytes())
		s.passesXDP("from the server", c.out.reply("A", "y").bytes())
		s.passesXDP("a new connection", w.packet(at(w.outside(2), 41000), at(w.outside(10), 80)).bytes())
		s.passesXDP("to a port that nobody has", w.packet(at(w.outside(2), 41000), at(w.outside(10), 81)).bytes())
		s.goesOn(c, "translate_established")
		_, err := s.tables.EndFlowCount(true)
		check(s, err)
		s.takesBoth(c)
	}, lb.TCP, lb.UDP)
}

// What is dropped without an answer is dropped at XDP, counted for its service and told as a sampled event, as by TC.
func TestXDPDropsWhatNobodyAnswers(t *testing.T) {
	rows := map[string]struct {
		service func(world) *service // nil: none
		to      func(world) netip.AddrPort
		verdict string // "": it passes
	}{
		"no local endpoint": {verdict: "drop_no_local_endpoints", service: func(w world) *service {
			return &service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), action: lb.Drop, reason: lb.ReasonNoLocalEndpoints}
		}},
		"a source that is not allowed": {verdict: "drop_source_range", service: func(w world) *service {
			return &service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2)), remote: true, ranges: []netip.Prefix{netip.PrefixFrom(w.pod(1), w.pod(1).BitLen())}}
		}},
		"an address of no Service": {verdict: "drop_unallocated", to: func(w world) netip.AddrPort { return at(w.vip(77), 80) }},
		"no endpoint": {service: func(w world) *service {
			return &service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints}
		}},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, bpf.Options{}, func(s site, w world) {
				to := at(w.outside(10), 80)
				if row.to != nil {
					to = row.to(w)
				}
				if row.service != nil {
					s.publish(w.decide(*row.service(w)))
				}
				in := w.packet(at(w.outside(1), 41000), to)
				if row.verdict == "" {
					s.passesXDP(name, in.bytes())
					return
				}
				check(s, errors.Join(drain(s.objects.Events), zero(s.objects.EventBudgets)))
				s.dropsAtXDP(in, row.verdict)
				s.edit(func(x *bpf.NearlbSettings) { x.Draining = 1 })
				s.passesXDP(name+", while the node drains", in.bytes())
				s.edit(func(x *bpf.NearlbSettings) { x.Draining, x.Yield = 0, 2 })
				s.passesXDP(name+", while the kernel's NAT may have it", in.bytes())
				s.edit(func(x *bpf.NearlbSettings) { x.Yield = 0 })
				if w.protocol == lb.TCP {
					s.passesXDP(name+", in the middle of a connection", in.with("A", "x").bytes())
				}
			}, lb.TCP, lb.UDP)
		})
	}
}

// A SYN or datagram of a flow that began before its Service refused such is TC's; one whose hash the entries of others share is dropped all the
// same. Of datagrams the flow is looked for in another way once one was dropped: until the Service takes them again.
func TestXDPLeavesWhatHasAFlowWhereOthersAreDropped(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		s.publish(w.decide(service{name: "web", kind: lb.KindLoadBalancer, address: c.in.dst, action: lb.Drop, reason: lb.ReasonNoLocalEndpoints}))
		s.passesXDP("a packet of a flow", c.in.bytes())
		s.tagFree()
		check(s, errors.Join(drain(s.objects.Events), zero(s.objects.EventBudgets)))
		for port := uint16(42000); port < 42040; port++ { // a quarter has a tag that is there
			s.dropsAtXDP(w.packet(at(w.outside(2), port), c.in.dst), "drop_no_local_endpoints")
			check(s, errors.Join(drain(s.objects.Events), zero(s.objects.EventBudgets)))
		}
		s.passesXDP("a packet of a flow among tags of others", c.in.bytes())
		s.hints(w.protocol == lb.UDP)
		check(s, errors.Join(zero(s.objects.FlowTags), zero(s.objects.Flows)))
		s.publish(far(w, 2))
		s.counted = s.counters()
		if got, err := s.runXDP(w.packet(at(w.outside(2), 42000), c.in.dst).bytes()); err != nil || got.action == xdpDrop {
			s.Errorf("the Service has a backend again: %v, action %d, verdict %q", err, got.action, got.verdict)
		}
		s.hints(false)
		check(s, errors.Join(zero(s.objects.FlowTags), zero(s.objects.Flows)))
	}, lb.TCP, lb.UDP)
}

// hints tells whether some destination's last datagram was dropped.
func (s site) hints(want bool) {
	s.Helper()
	var refusals bpf.NearlbXdpRefusals
	check(s, s.objects.XdpRefusals.Lookup(uint32(0), &refusals))
	if got := refusals != (bpf.NearlbXdpRefusals{}); got != want {
		s.Errorf("the flow of the next datagram is looked for by tags first: %v, want %v", got, want)
	}
}

// The same wherever their entries are: in the second block of each hash as well as in the first.
func TestXDPLeavesWhatHasAFlowInAFullTableWhereOthersAreDropped(t *testing.T) {
	forEachSite(t, withSets(64), func(s site, w world) {
		s.publish(far(w, 2, 3, 4, 5, 6, 7, 8, 9))
		to := at(w.outside(10), 80)
		var all []talk
		for port := range uint16(160) { // twice as many entries, in a table of 512
			all = append(all, s.remote(w.packet(at(w.outside(1), 41000+port), to), "translate_balance"))
		}
		if over := contents[bpf.NearlbFlowOverflow](s.rig, s.objects.FlowOverflows); over[0] == (bpf.NearlbFlowOverflow{}) {
			s.Error("all entries are in their first blocks")
		}
		s.publish(w.decide(service{name: "web", kind: lb.KindLoadBalancer, address: to, action: lb.Drop, reason: lb.ReasonNoLocalEndpoints}))
		check(s, errors.Join(drain(s.objects.Events), zero(s.objects.EventBudgets)))
		s.dropsAtXDP(w.packet(at(w.outside(2), 42000), to), "drop_no_local_endpoints")
		for _, c := range all {
			s.passesXDP("a packet of a flow", c.in.bytes())
		}
	}, lb.TCP, lb.UDP)
}

// tagFree gives each entry that is free a tag, as while others write it: those of a block have different ones.
func (r *rig) tagFree() {
	r.Helper()
	memory, err := r.objects.FlowTags.Memory()
	check(r, err)
	tags := make([]byte, memory.Size())
	_, err = memory.ReadAt(tags, 0)
	check(r, err)
	for i, tag := range tags {
		if tag == 0 {
			tags[i] = byte(1 + i%64)
		}
	}
	_, err = memory.WriteAt(tags, 0)
	check(r, err)
}

func (s site) dropsAtXDP(in packet, verdict string) {
	s.Helper()
	before := s.refused()
	s.counted = s.counters()
	got, err := s.runXDP(in.bytes())
	check(s, err)
	if got.verdict != verdict || got.action != xdpDrop {
		s.Errorf("action %d, verdict %q, want %s", got.action, got.verdict, verdict)
	}
	if want := before + map[bool]uint64{true: 1}[verdict != "drop_unallocated"]; s.refused() != want {
		s.Errorf("%s: %d packets refused by services, want %d", verdict, s.refused(), want)
	}
	e := s.lastEvent()
	if bpf.VerdictOf(e.Verdict).Name != verdict || bpf.Hooks()[e.Hook] != xdp || e.Ifindex != loopback {
		s.Errorf("event %+v, want %s at xdp", e, verdict)
	}
}

// refused is how many packets services dropped.
func (r *rig) refused() (n uint64) {
	r.Helper()
	var id uint32
	var each []bpf.NearlbServiceCounter
	for all := r.objects.ServiceCounters.Iterate(); all.Next(&id, &each); {
		for _, c := range each {
			n += c.Dropped
		}
	}
	return n
}

// lastEvent is the one that is there.
func (r *rig) lastEvent() (e bpf.NearlbEvent) {
	r.Helper()
	reader, err := ringbuf.NewReader(r.objects.Events)
	check(r, err)
	defer reader.Close()
	reader.SetDeadline(time.Unix(1, 0)) // what is there, and nothing that comes
	record, err := reader.Read()
	check(r, err)
	check(r, binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e))
	return e
}
