// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// tunnelPort is every node's.
const tunnelPort = 6091

// Kinds of what is in the tunnel (enum tunnel_kind).
const (
	kindForward = 1
	kindReply   = 2
	kindDirect  = 7
	kindUnknown = 8
)

// nodePair is two nodes with tables of their own: clients come by n1, the backends are on n2. Neither's address is on a device, as the
// routing tables that both ask would have no way to their own.
type nodePair struct {
	site       // of n1
	other site // of n2
	way   lb.OffNode
}

// node1 and node2 are the addresses of n1 and n2.
func (w world) node1() netip.Addr { return w.addr("172.31.0.", "fd00:31::", 11) }
func (w world) node2() netip.Addr { return w.addr("172.31.0.", "fd00:31::", 12) }

// stranger is on the nodes' network, and no node.
func (w world) stranger() netip.Addr { return w.addr("172.31.0.", "fd00:31::", 13) }

func tunnelNodes() maps.Tunnel {
	four, six := world{}, world{v6: true}
	return maps.Tunnel{Port: tunnelPort, Nodes: map[string]maps.TunnelNode{
		"n1": {Addresses: []netip.Addr{four.node1(), six.node1()}, Carries: true, Direct: true},
		"n2": {Addresses: []netip.Addr{four.node2(), six.node2()}, Carries: true, Direct: true},
	}}
}

// forEachNodePair runs a test for both families of each protocol, in a namespace that is built once.
func forEachNodePair(t *testing.T, test func(nodePair, world), protocols ...lb.Protocol) {
	t.Helper()
	atXDP := strings.Contains(t.Name(), "AtXDP")
	o := bpf.Options{Knobs: map[string]any{"tunnel_there": uint8(1)}, XDPOpens: atXDP || !few}
	opened := 0
	privileged.Namespace(t, func(*os.File) {
		s := nodePair{site: newSite(t, newRig(t, o)), way: lb.OffNodeCarry}
		s.other = s.site
		s.other.rig = newRig(t, o)
		s.other.by = s.clients // what leaves the tunnel comes by the device that its clients are behind
		for _, w := range worlds(lb.TCP) {
			for _, a := range []netip.Addr{w.node1(), w.node2(), w.stranger()} {
				addNeighbour(t, s.nodes, a)
			}
		}
		for _, w := range worlds(protocols...) {
			w.door = networkDoor
			sub := s
			sub.rig, sub.other.rig = s.rig.in(t).at(w), s.other.rig.in(t).at(w)
			sub.tell(tunnelNodes())
			if atXDP {
				sub.resumed, sub.other.resumed = &opened, &opened
			}
			if test(sub, w); t.Failed() {
				t.Errorf("in world %s", w)
				return
			}
		}
	})
	if atXDP && opened == 0 {
		t.Error("XDP took no packet out of the tunnel")
	}
}

// tell configures both nodes.
func (s nodePair) tell(tunnel maps.Tunnel) {
	s.Helper()
	s.tellApart(tunnel, tunnel)
}

// tellApart has n1 and n2 know different things.
func (s nodePair) tellApart(tunnel, other maps.Tunnel) {
	s.Helper()
	four, six := world{}, world{v6: true}
	c := maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), SNATPorts: snatPorts(), Tunnel: tunnel}
	c.Devices = map[uint32]maps.DeviceSources{uint32(s.nodes.Attrs().Index): {Source4: netip.MustParseAddr("172.31.0.1"), Source6: netip.MustParseAddr("fd00:31::1")}, uint32(s.clients.Attrs().Index): {}}
	c.Node4, c.Node6, c.NodePort4, c.NodePort6 = four.node1(), six.node1(), four.node1(), six.node1()
	check(s, s.tables.Configure(c))
	c.Tunnel = other
	c.Node4, c.Node6, c.NodePort4, c.NodePort6 = four.node2(), six.node2(), four.node2(), six.node2()
	check(s, s.other.tables.Configure(c))
}

// serve publishes a Service on both nodes, whose backends are pods of n2.
func (s nodePair) serve(w world, change func(*service), pods ...int) {
	s.Helper()
	s.serveOn(s.other, w, change, pods...)
	s.serveOn(s.site, w, change, pods...)
}

// serveOn publishes it on one of them.
func (s nodePair) serveOn(of site, w world, change func(*service), pods ...int) {
	s.Helper()
	first := of.rig == s.rig
	one := service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, pods...)), remote: first}
	if change != nil {
		change(&one)
	}
	if one.kind == lb.KindNodePort {
		one.address = at(map[bool]netip.Addr{true: w.node1(), false: w.node2()}[first], one.address.Port())
	}
	d := w.decide(one)
	d.OffNode = s.way
	for i := range d.Backends {
		d.Backends[i].Node = "n2"
	}
	of.publish(d)
}

// datagram is what is in the tunnel.
type datagram struct {
	from, to netip.AddrPort
	kind     uint32
	cookie   uint64         // 0: none
	option   netip.AddrPort // zero: none
	class    uint8
	inner    []byte // from its IP header on
}

// wrap is the datagram's frame, made without a look at the programs.
func (d datagram) frame() []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(map[bool]layers.EthernetType{false: layers.EthernetTypeIPv4, true: layers.EthernetTypeIPv6}[d.inner[0]>>4 == 6]))
	body = binary.BigEndian.AppendUint32(body, d.kind<<8)
	head := []byte{0, 0}
	if d.cookie != 0 {
		head, body = []byte{3, 0x40}, append(body, cookieOption(d.cookie)...)
	}
	if d.option.IsValid() {
		option := binary.BigEndian.AppendUint16([]byte{0xff, 0x01, 0x81, 0}, d.option.Port())
		option = append(append(option, 0, 0), d.option.Addr().AsSlice()...)
		option[3] = byte(len(option)/4 - 1)
		head, body = []byte{head[0] + byte(len(option)/4), 0x40}, append(body, option...)
	}
	udp := &layers.UDP{SrcPort: layers.UDPPort(d.from.Port()), DstPort: layers.UDPPort(d.to.Port())}
	part := serializeLengths(udp, gopacket.Payload(slices.Concat(head, body, d.inner)))
	frame := slices.Concat(hostMAC, podMAC)
	if d.from.Addr().Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 64, TOS: d.class, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP, SrcIP: d.from.Addr().AsSlice(), DstIP: d.to.Addr().AsSlice()}
		return slices.Concat(frame, []byte{8, 0}, serialize(ip, gopacket.Payload(part)))
	}
	ip := &layers.IPv6{Version: 6, HopLimit: 64, TrafficClass: d.class, NextHeader: layers.IPProtocolUDP, SrcIP: d.from.Addr().AsSlice(), DstIP: d.to.Addr().AsSlice()}
	return slices.Concat(frame, []byte{0x86, 0xdd}, serialize(ip, gopacket.Payload(part)))
}

// cookieOption is as it is in a header.
func cookieOption(cookie uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{0xff, 0x01, 0x82, 2}, cookie)
}

// serializeLengths fills lengths and leaves checksums zero.
func serializeLengths(all ...gopacket.SerializableLayer) []byte {
	buffer := gopacket.NewSerializeBuffer()
	must(gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, all...))
	return buffer.Bytes()
}

// classOf is DSCP and ECN of a packet from its IP header on.
func classOf(ip []byte) uint8 {
	if ip[0]>>4 == 4 {
		return ip[1]
	}
	return ip[0]<<4 | ip[1]>>4
}

// forward and back are the datagrams that n1 and n2 should send for a packet, given from its Ethernet header on.
func (w world) forward(frame []byte, option netip.AddrPort) datagram {
	return datagram{from: at(w.node1(), 0), to: at(w.node2(), tunnelPort), kind: kindForward, cookie: w.cookie, option: option, class: classOf(frame[14:]), inner: frame[14:]}
}

func (w world) back(frame []byte) datagram {
	return datagram{from: at(w.node2(), 0), to: at(w.node1(), tunnelPort), kind: kindReply, cookie: w.cookie, class: classOf(frame[14:]), inner: frame[14:]}
}

// goes runs a frame and wants a verdict and what leaves.
func (s site) goes(hook string, in, want []byte, verdict string, told action) []byte {
	s.Helper()
	got, err := s.run(hook, in)
	check(s, err)
	if got.verdict != verdict || got.action != told || !bytes.Equal(got.frame, want) {
		s.Errorf("%s: verdict %s, want %s; action %d, want %d; frame out (-want +got)\n%s", hook, got.verdict, verdict, got.action, told, cmp.Diff(show(want), show(got.frame)))
	}
	return got.frame
}

// enters runs a frame that goes into the tunnel.
func (s site) enters(hook string, in []byte, want datagram, verdict string) []byte {
	s.Helper()
	got, err := s.run(hook, in)
	check(s, err)
	at := 14 + map[byte]int{4: 20, 6: 40}[got.frame[14]>>4]
	if want.from = netip.AddrPortFrom(want.from.Addr(), binary.BigEndian.Uint16(got.frame[at:])); want.from.Port() < 0x8000 {
		s.Errorf("%s: from port %d", got.verdict, want.from.Port())
	}
	if got.verdict != verdict || got.action != actRedirect || !bytes.Equal(got.frame[12:], want.frame()[12:]) {
		s.Errorf("%s: verdict %s, want %s; action %d; frame out (-want +got)\n%s", hook, got.verdict, verdict, got.action, cmp.Diff(show(want.frame()), show(got.frame)))
	}
	return got.frame
}

// refuses wants a frame dropped, for a reason.
func (s site) refuses(hook string, frame []byte, verdict string) {
	s.Helper()
	got, err := s.run(hook, frame)
	check(s, err)
	if got.verdict != verdict || got.action != actShot {
		s.Errorf("%s: verdict %s, want %s; action %d\n%s", hook, got.verdict, verdict, got.action, show(frame))
	}
}
