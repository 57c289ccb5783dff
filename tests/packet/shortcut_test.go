// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// hall is a node whose packets take the shortcut: a site with two pods, the client (1) and a server (3). Server 2 is on another node.
// Clients off the node come by the device clients.
type hall struct {
	site
	client, server netlink.Link
}

func (w world) mac(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, byte(n)} }

// forEachHall runs a test for both families and both doors of clients, in a namespace that is built once: in one goroutine, whose thread
// is in it.
func forEachHall(t *testing.T, test func(hall, world)) {
	t.Helper()
	privileged.Namespace(t, func(*os.File) {
		h := hall{site: newSite(t, newRig(t, bpf.Options{Knobs: map[string]any{"shortcut_there": uint8(1)}}))}
		h.client, h.server = addDevice(t, "client"), addDevice(t, "server")
		for _, w := range worlds(lb.TCP) {
			h.leads(w, 1, h.client)
			h.leads(w, 3, h.server)
		}
		for _, w := range through([]door{podDoor, networkDoor}, worlds(lb.TCP, lb.UDP)) {
			sub := h
			sub.rig = h.rig.in(t).at(w)
			sub.shortcut(tables.ShortcutOn)
			sub.publish(w.decide(service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 3))}))
			sub.publish(w.decide(service{name: "far", address: at(w.vip(11), 80), tiers: tiersOf(w.tier(8080, 2))}))
			if test(sub, w); t.Failed() {
				t.Errorf("in world %s", w)
				return
			}
		}
	})
}

// leads has the n-th pod behind a device of its own.
func (h hall) leads(w world, n int, link netlink.Link) {
	h.Helper()
	bits := w.pod(n).BitLen()
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: w.pod(n).AsSlice(), Mask: net.CIDRMask(bits, bits)}, Scope: netlink.SCOPE_LINK}
	check(h, netlink.RouteReplace(route))
	h.neighbour(w, n, link, netlink.NUD_PERMANENT)
}

func (h hall) neighbour(w world, n int, link netlink.Link, state int) {
	h.Helper()
	check(h, netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: state, IP: w.pod(n).AsSlice(), HardwareAddr: w.mac(n)}))
}

func (h hall) shortcut(mode tables.Shortcut) {
	h.Helper()
	check(h, h.tables.Configure(tables.Config{
		ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), SNATPorts: snatPorts(), Shortcut: mode,
		Sources: []netip.Addr{netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("fd00:31::1")},
		Devices: map[uint32]tables.DeviceSources{uint32(h.nodes.Attrs().Index): {}, uint32(h.clients.Attrs().Index): {}},
		Pods:    []uint32{uint32(h.client.Attrs().Index), uint32(h.server.Attrs().Index)},
	}))
}

// near is the first packet to the server of this node, from a client of the world's door.
func (w world) near() packet {
	client := w.pod(1)
	if w.door == networkDoor {
		client = w.outside(1)
	}
	return w.packet(at(client, 41000), at(w.outside(10), 80))
}

// counts runs a frame and says which counters grew.
func (h hall) counts(program *ebpf.Program, frame []byte) (action, []byte, []string) {
	h.Helper()
	before := h.counters()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512)}
	code, err := program.Run(&opts)
	check(h, err)
	grown := []string{}
	for c, now := range h.counters() {
		if now != before[c] {
			grown = append(grown, c.hook+" "+c.verdict)
		}
	}
	slices.Sort(grown)
	return action(int32(code)), opts.DataOut, grown
}

// passes runs a frame and wants what is told to the kernel, the bytes, and what is counted, in order.
func (h hall) passes(program *ebpf.Program, in, want []byte, told action, counted ...string) {
	h.Helper()
	got, frame, grown := h.counts(program, in)
	if got != told || !bytes.Equal(want, frame) || !slices.Equal(grown, counted) {
		h.Errorf("action %d, want %d; counted %q, want %q; packet out (-want +got)\n%s", got, told, grown, counted, cmp.Diff(show(want), show(frame)))
	}
}

// enters wants a packet in the n-th pod, as out, past to_pod.
func (h hall) enters(w world, n int, program *ebpf.Program, in, out packet, counted ...string) {
	h.Helper()
	link := map[int]netlink.Link{1: h.client, 3: h.server}[n]
	want := slices.Concat(w.mac(n), link.Attrs().HardwareAddr, routed(out)[12:])
	h.passes(program, in.bytes(), want, actRedirect, counted...)
}

// goes wants a packet on its way to a neighbour, as out: the kernel writes the MAC addresses later.
func (h hall) goes(program *ebpf.Program, in, out packet, counted string) {
	h.Helper()
	h.passes(program, in.bytes(), routed(out), actRedirect, counted)
}

// stays wants a packet left to the stack, as out.
func (h hall) stays(program *ebpf.Program, in, out []byte, counted string) {
	h.Helper()
	h.passes(program, in, out, actUnspec, counted)
}

// door is the program of the world's clients, and how it counts.
func (h hall) door(verdict string) (program *ebpf.Program, counted string) {
	return h.program(fromPod), h.hook(fromPod) + " " + verdict
}

// connects opens a connection to the server of this node.
func (h hall) connects(w world) talk {
	h.Helper()
	in := w.near()
	c := talk{in, in.to(at(w.pod(3), 8080))}
	program, counted := h.door("translate_balance")
	h.enters(w, 3, program, c.in, c.out, counted, "to_pod pass_not_service")
	return c
}

// What the stack would forward to a pod of this node goes there past it, from a pod and from off the node, the first packet of a
// connection as the others, and its answers go back so. The counters are those that they would be with the stack between.
func TestATranslatedPacketGoesToAPodOfThisNodePastTheStack(t *testing.T) {
	forEachHall(t, func(h hall, w world) {
		c := h.connects(w)
		program, counted := h.door("translate_established")
		for range 2 {
			h.enters(w, 3, program, c.in.with("A", "more"), c.out.with("A", "more"), counted, "to_pod pass_not_service")
			answer := c.out.reply("PA", "yes")
			if w.door == networkDoor { // to_net translates it as it leaves
				h.goes(h.objects.FromPod, answer, answer, "from_pod pass_not_service")
				h.stays(h.objects.ToNet, answer.bytes(), answer.from(c.in.dst).to(c.in.src).bytes(), "to_net translate_reply")
				continue
			}
			h.enters(w, 1, h.objects.FromPod, answer, answer.from(c.in.dst).to(c.in.src), "from_pod pass_not_service", "to_pod translate_reply")
		}
	})
}

// To a server of another node it goes by the neighbour, and its answers come into the pod past the stack.
func TestATranslatedPacketGoesToAnotherNodePastTheStack(t *testing.T) {
	forEachHall(t, func(h hall, w world) {
		if w.door == networkDoor {
			return // that is SNAT's, which never takes the stack
		}
		in := w.packet(at(w.pod(1), 41000), at(w.vip(11), 80))
		c := talk{in, in.to(at(w.pod(2), 8080))}
		h.goes(h.objects.FromPod, c.in, c.out, "from_pod translate_balance")
		for range 2 {
			h.goes(h.objects.FromPod, c.in.with("A", "more"), c.out.with("A", "more"), "from_pod translate_established")
			answer := c.out.reply("PA", "yes")
			h.enters(w, 1, h.objects.FromNet, answer, answer.from(c.in.dst).to(c.in.src), "from_net pass_not_service", "to_pod translate_reply")
		}
	})
}

// What a connection shows is remembered on this way, too: its end, for one.
func TestAFlowSeesItsConnectionOnTheShortcut(t *testing.T) {
	forEachHall(t, func(h hall, w world) {
		if w.door == networkDoor || w.protocol != lb.TCP {
			return
		}
		c := h.connects(w)
		for _, flags := range []string{"SA", "A", "FA"} {
			answer := c.out.reply(flags, "")
			h.enters(w, 1, h.objects.FromPod, answer, answer.from(c.in.dst).to(c.in.src), "from_pod pass_not_service", "to_pod translate_reply")
		}
		want := uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED | bpf.NearlbFlowSeenSEEN_SERVER_FIN)
		for _, f := range h.liveFlows() {
			if f.Seen&want != want {
				h.Errorf("the flow has seen %#x, want %#x in it", f.Seen, want)
			}
		}
	})
}

// Whatever a router does more than to forward, the stack does: it gets the packet as it got it before there was a shortcut.
func TestTheShortcutLeavesWhatIsNotSimpleToTheStack(t *testing.T) {
	same := func(frame []byte) []byte { return frame }
	for name, in := range map[string]struct {
		change func(hall, world) (back func())
		packet func(packet) packet // nil: none
		frame  func([]byte) []byte // nil: none
	}{
		"switched off": {change: func(h hall, w world) func() {
			h.shortcut(tables.ShortcutOff)
			return func() { h.shortcut(tables.ShortcutOn) }
		}},
		"its last hop":         {frame: func(frame []byte) []byte { return times(62+1, aged, frame) }},
		"for somebody else":    {frame: func(frame []byte) []byte { return slices.Concat(podMAC, frame[6:]) }},
		"an unknown neighbour": {change: func(h hall, w world) func() { return h.unknown(w, netlink.NUD_NONE) }},
		"a failed neighbour":   {change: func(h hall, w world) func() { return h.unknown(w, netlink.NUD_FAILED) }},
		"an MTU that is too small": {packet: func(p packet) packet { return p.with("A", string(make([]byte, 1300))) }, change: func(h hall, w world) func() {
			check(h, netlink.LinkSetMTU(h.server, 1290))
			return func() { check(h, netlink.LinkSetMTU(h.server, 1500)) }
		}},
		"no forwarding": {change: func(h hall, w world) func() {
			path := map[bool]string{false: "/proc/sys/net/ipv4/ip_forward", true: "/proc/sys/net/ipv6/conf/all/forwarding"}[w.v6]
			check(h, os.WriteFile(path, []byte("0"), 0))
			return func() { check(h, os.WriteFile(path, []byte("1"), 0)) }
		}},
		"a route that refuses":   {change: byRoute(netlink.Route{Type: unix.RTN_PROHIBIT})},
		"a route that drops":     {change: byRoute(netlink.Route{Type: unix.RTN_BLACKHOLE})},
		"a route to nowhere":     {change: byRoute(netlink.Route{Type: unix.RTN_UNREACHABLE})},
		"a route that throws":    {change: byRoute(netlink.Route{Type: unix.RTN_THROW})},
		"a route with headers":   {change: byRoute(netlink.Route{Encap: ownHeaders()})},
		"a route with a program": {change: byRoute(netlink.Route{Encap: ownProgram(t)})},
	} {
		t.Run(name, func(t *testing.T) {
			if in.packet == nil {
				in.packet = func(p packet) packet { return p.with("A", "more") }
			}
			if in.frame == nil {
				in.frame = same
			}
			forEachHall(t, func(h hall, w world) {
				c := h.connects(w)
				if in.change != nil {
					defer in.change(h, w)()
				}
				program, counted := h.door("translate_established")
				if name == "for somebody else" && w.door == networkDoor {
					frame := in.frame(c.in.bytes())
					h.stays(program, frame, frame, h.hook(fromPod)+" pass_not_service")
					return
				}
				h.stays(program, in.frame(in.packet(c.in).bytes()), in.frame(in.packet(c.out).bytes()), counted)
			})
		})
	}
}

func times(n int, do func([]byte) []byte, frame []byte) []byte {
	for range n {
		frame = do(frame)
	}
	return frame
}

// unknown has the server's neighbour entry say that nobody knows where it is.
func (h hall) unknown(w world, state int) (back func()) {
	h.Helper()
	if state == netlink.NUD_NONE {
		check(h, netlink.NeighDel(&netlink.Neigh{LinkIndex: h.server.Attrs().Index, IP: w.pod(3).AsSlice()}))
	} else {
		h.neighbour(w, 3, h.server, state)
	}
	return func() { h.neighbour(w, 3, h.server, netlink.NUD_PERMANENT) }
}

// byRoute gives what goes to the server another route: one without a type leads to it.
func byRoute(route netlink.Route) func(hall, world) (back func()) {
	return func(h hall, w world) (back func()) {
		h.Helper()
		bits := w.pod(3).BitLen()
		to := &net.IPNet{IP: w.pod(3).AsSlice(), Mask: net.CIDRMask(bits, bits)}
		other := route
		other.Dst = to
		if other.Type == 0 {
			other.LinkIndex, other.Scope = h.server.Attrs().Index, netlink.SCOPE_LINK
		}
		check(h, netlink.RouteDel(&netlink.Route{LinkIndex: h.server.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}))
		check(h, netlink.RouteAdd(&other))
		return func() {
			check(h, netlink.RouteDel(&other))
			h.leads(w, 3, h.server)
		}
	}
}

// ownHeaders are put in front by the kernel as it routes a packet.
func ownHeaders() netlink.Encap {
	return &netlink.SEG6Encap{Mode: nl.SEG6_IPTUN_MODE_ENCAP, Segments: []net.IP{world{v6: true}.stranger().AsSlice()}}
}

// ownProgram is run by the kernel as it sends what it routes.
func ownProgram(t testing.TB) netlink.Encap {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.LWTXmit, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	check(t, err)
	t.Cleanup(func() { program.Close() })
	encap := &netlink.BpfEncap{}
	check(t, encap.SetProg(nl.LWT_BPF_XMIT, program.FD(), "sees"))
	return encap
}

// Options, extension headers and fragments are translated, and left to the stack.
func TestTheShortcutTakesPlainHeadersOnly(t *testing.T) {
	forEachHall(t, func(h hall, w world) {
		c := h.connects(w)
		program, counted := h.door("translate_established")
		for name, change := range changes(w) {
			in, out := change(c.in.with("A", "x")), change(c.out.with("A", "x"))
			if name == "options" || name == "extension header" {
				h.stays(program, in.bytes(), out.bytes(), counted)
			} else {
				h.enters(w, 3, program, in, out, counted, "to_pod pass_not_service")
			}
		}
		first := long(c.in)
		first.flags = "A"
		in := first.cut(9, 0, 600)
		h.stays(program, in.bytes(), in.to(c.out.dst).bytes(), counted)
	})
}

// A source that the stack takes for forged gets no further by the shortcut: the host's own addresses, and those that nobody forwards.
func TestTheShortcutForwardsNoForgedSource(t *testing.T) {
	forEachHall(t, func(h hall, w world) {
		program, counted := h.door("translate_balance")
		for _, source := range []netip.Addr{w.own(), w.addr("127.0.0.", "fe80::", 9), w.addr("224.0.0.", "ff02::", 9)} {
			in := w.near().from(at(source, 41000))
			h.stays(program, in.bytes(), in.to(at(w.pod(3), 8080)).bytes(), counted)
		}
	})
}

// to_pod sees what may be an answer to its pod: that of a server that is itself a client, from the port that it serves on.
func TestTheShortcutLeavesAnswersThatItCannotTellToTheStack(t *testing.T) {
	forEachHall(t, func(h hall, w world) {
		if w.door == networkDoor {
			return
		}
		h.publish(w.decide(service{name: "other", address: at(w.vip(12), 80), tiers: tiersOf([]netip.AddrPort{at(w.pod(1), 41000)})}))
		in := w.near()
		h.stays(h.objects.FromPod, in.bytes(), in.to(at(w.pod(3), 8080)).bytes(), "from_pod translate_balance")
		direct := w.packet(at(w.pod(1), 41000), at(w.pod(9), 33000)).with("A", "an answer that has no flow")
		h.stays(h.objects.FromPod, direct.bytes(), direct.bytes(), "from_pod pass_not_service")
	})
}

// An agent that looks what is passed by says several times a second that it does. Without its word, packets are the stack's.
func TestTheShortcutEndsWithWhoLooks(t *testing.T) {
	forEachHall(t, func(h hall, w world) {
		var now unix.Timespec
		check(h, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		c := talk{w.near(), w.near().to(at(w.pod(3), 8080))}
		h.shortcut(tables.ShortcutWhileBeating)
		_, counted := h.door("translate_balance")
		h.tables.BeatShortcut(uint64(now.Nano()) - uint64(2*time.Second))
		h.stays(h.program(fromPod), c.in.bytes(), c.out.bytes(), counted)
		h.tables.BeatShortcut(uint64(now.Nano()) + uint64(time.Hour)) // a beat that is no more, hours later
		program, counted := h.door("translate_established")
		h.stays(program, c.in.with("A", "x").bytes(), c.out.with("A", "x").bytes(), counted)
		in, want := c.in.with("A", "x").bytes(), routed(c.out.with("A", "x"))
		for tries := 0; ; tries++ {
			check(h, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
			h.tables.BeatShortcut(uint64(now.Nano()))
			if told, frame, _ := h.counts(program, in); told == actRedirect && bytes.Equal(frame[12:], want[12:]) {
				return
			} else if tries == 100 { // the test may be slower than the agent may be
				h.Fatalf("action %d\n%s", told, cmp.Diff(show(want), show(frame)))
			}
		}
	})
}
