// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Protocol numbers besides those of Services.
const (
	protocolICMP   lb.Protocol = 1
	protocolICMPv6 lb.Protocol = 58
)

// packet is one frame as a value: rows change the fields that they are about. Checksums and lengths are made from scratch
// each time it is turned into bytes, by gopacket, which shares no code with the programs.
type packet struct {
	src, dst   netip.AddrPort // ports are left out where the protocol has none
	protocol   lb.Protocol
	flags      string // of TCP: letters of FSRPA
	seq, ack   uint32
	noChecksum bool // UDP without one
	payload    []byte
	icmp       *icmp

	reversed bool // destination and source MAC changed places: sent back to where it came from
	vlan     bool
	id       uint16 // IPv4 identification
	options  []layers.IPv4Option
	headers  []extension // IPv6 extension headers, outermost first
	inner    []extension // behind the fragment header: of a packet that is cut the first fragment alone has them
	fragment *fragment
	mss      uint16             // of a SYN; 0: 1460
	ahead    []layers.TCPOption // of that among a SYN's options
	more     int                // bytes of further TCP options of a SYN, 36 at most
}

// icmp is what follows the checksum of an ICMP or ICMPv6 message.
type icmp struct {
	kind, code uint8
	rest       uint32 // the second word: identifier and sequence number, MTU
	body       []byte
}

// extension is one IPv6 extension header; body is all but its first byte, the next header.
type extension struct {
	protocol uint8
	body     []byte
}

// fragment cuts the packet's transport part: bytes first to last (0: to the end), first a multiple of 8.
type fragment struct {
	id          uint32
	first, last int
}

var (
	podMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x0a}
	hostMAC = net.HardwareAddr{0, 0, 0, 0, 0, 0} // that of the loopback device, for which the kernel takes test frames: for itself
)

func (p packet) v6() bool { return p.src.Addr().Is6() }

// reply is the answer to p with the given TCP flags: addresses and ports change places, numbers go on.
func (p packet) reply(flags, payload string) packet {
	p.src, p.dst = p.dst, p.src
	p.flags, p.payload = flags, []byte(payload)
	p.seq, p.ack = p.ack, p.seq+1
	return p
}

func (p packet) from(src netip.AddrPort) packet { p.src = src; return p }
func (p packet) to(dst netip.AddrPort) packet   { p.dst = dst; return p }
func (p packet) back() packet                   { p.reversed = !p.reversed; return p }
func (p packet) with(flags, payload string) packet {
	p.flags, p.payload = flags, []byte(payload)
	return p
}

// cut makes a fragment of p.
func (p packet) cut(id uint32, first, last int) packet {
	p.fragment = &fragment{id: id, first: first, last: last}
	return p
}

// bytes is the frame.
func (p packet) bytes() []byte {
	src, dst := podMAC, hostMAC
	if p.reversed {
		src, dst = dst, src
	}
	kind := uint16(layers.EthernetTypeIPv4)
	if p.v6() {
		kind = uint16(layers.EthernetTypeIPv6)
	}
	frame := slices.Concat(dst, src)
	if p.vlan {
		frame = binary.BigEndian.AppendUint16(frame, uint16(layers.EthernetTypeDot1Q))
		frame = binary.BigEndian.AppendUint16(frame, 100)
	}
	frame = binary.BigEndian.AppendUint16(frame, kind)
	return append(frame, p.network()...)
}

// network is the packet from its IP header on.
func (p packet) network() []byte {
	if p.v6() {
		return p.ipv6()
	}
	ip := p.ipv4Header()
	ip.Options = p.options
	ip.Protocol = layers.IPProtocol(p.protocol)
	part := p.transport()
	if p.fragment != nil {
		ip.Id = uint16(p.fragment.id)
		ip.FragOffset = uint16(p.fragment.first / 8)
		var more bool
		if part, more = p.fragment.of(part); more {
			ip.Flags = layers.IPv4MoreFragments
		}
	}
	return serialize(ip, gopacket.Payload(part))
}

func (p packet) ipv6() []byte {
	part, next := wrapped(p.inner, uint8(p.protocol), p.transport())
	chain := slices.Clone(p.headers)
	if p.fragment != nil {
		cut, more := p.fragment.of(part)
		part = cut
		chain = append(chain, fragmentHeader(p.fragment, more))
	}
	part, next = wrapped(chain, next, part)
	ip := p.ipv6Header()
	ip.NextHeader = layers.IPProtocol(next)
	return serialize(ip, gopacket.Payload(part))
}

// wrapped puts extension headers in front of a part that the number next stands for.
func wrapped(chain []extension, next uint8, part []byte) ([]byte, uint8) {
	for _, header := range slices.Backward(chain) {
		part = slices.Concat([]byte{next}, header.body, part)
		next = header.protocol
	}
	return part, next
}

func (f *fragment) of(part []byte) ([]byte, bool) {
	if f.last == 0 || f.last >= len(part) {
		return part[f.first:], false
	}
	return part[f.first:f.last], true
}

func fragmentHeader(f *fragment, more bool) extension {
	word := uint16(f.first)
	if more {
		word |= 1
	}
	body := binary.BigEndian.AppendUint16([]byte{0}, word)
	return extension{protocol: 44, body: binary.BigEndian.AppendUint32(body, f.id)}
}

func (p packet) ipv4Header() *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 63, TOS: 0x10, Id: p.id, SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
}

func (p packet) ipv6Header() *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 63, FlowLabel: 0x12345, SrcIP: p.src.Addr().AsSlice(), DstIP: p.dst.Addr().AsSlice()}
}

// transport is the whole part behind the IP headers, also where the packet is a fragment of it.
func (p packet) transport() []byte {
	var pseudo gopacket.NetworkLayer = p.ipv4Header()
	if p.v6() {
		pseudo = p.ipv6Header()
	}
	body := gopacket.Payload(p.payload)
	switch p.protocol {
	case lb.TCP:
		tcp := p.tcp()
		must(tcp.SetNetworkLayerForChecksum(pseudo))
		return serialize(tcp, body)
	case lb.UDP:
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.src.Port()), DstPort: layers.UDPPort(p.dst.Port())}
		must(udp.SetNetworkLayerForChecksum(pseudo))
		part := serialize(udp, body)
		if p.noChecksum {
			part[6], part[7] = 0, 0
		}
		return part
	case lb.SCTP:
		return serialize(&layers.SCTP{SrcPort: layers.SCTPPort(p.src.Port()), DstPort: layers.SCTPPort(p.dst.Port()), VerificationTag: p.seq}, body)
	case protocolICMP:
		m := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(p.icmp.kind, p.icmp.code), Id: uint16(p.icmp.rest >> 16), Seq: uint16(p.icmp.rest)}
		return serialize(m, gopacket.Payload(p.icmp.body))
	case protocolICMPv6:
		m := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(p.icmp.kind, p.icmp.code)}
		must(m.SetNetworkLayerForChecksum(pseudo))
		return serialize(m, gopacket.Payload(append(binary.BigEndian.AppendUint32(nil, p.icmp.rest), p.icmp.body...)))
	}
	return p.payload
}

func (p packet) tcp() *layers.TCP {
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(p.src.Port()), DstPort: layers.TCPPort(p.dst.Port()), Seq: p.seq, Ack: p.ack, Window: 0x7210,
		FIN: strings.Contains(p.flags, "F"), SYN: strings.Contains(p.flags, "S"), RST: strings.Contains(p.flags, "R"),
		PSH: strings.Contains(p.flags, "P"), ACK: strings.Contains(p.flags, "A"),
	}
	if tcp.SYN {
		tcp.Options = append(slices.Clone(p.ahead), layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionData: binary.BigEndian.AppendUint16(nil, or(p.mss, 1460))})
		if p.more > 0 {
			tcp.Options = append(tcp.Options, layers.TCPOption{OptionType: 254, OptionData: bytes.Repeat([]byte{0xa5}, p.more-2), OptionLength: uint8(p.more)})
		}
	}
	return tcp
}

// quote is the ICMP error that a host sends about p: kind and code by family, the first n bytes behind p's IP headers
// quoted, or all of them where n is 0. It goes to p's source.
func (p packet) quote(source netip.Addr, kind, code uint8, rest uint32, n int) packet {
	quoted := p.network()
	if n > 0 {
		quoted = quoted[:min(len(quoted), len(quoted)-len(p.transport())+n)]
	}
	e := packet{
		src: netip.AddrPortFrom(source, 0), dst: netip.AddrPortFrom(p.src.Addr(), 0), protocol: protocolICMP,
		icmp: &icmp{kind: kind, code: code, rest: rest, body: quoted},
	}
	if p.v6() {
		e.protocol = protocolICMPv6
	}
	return e
}

func serialize(all ...gopacket.SerializableLayer) []byte {
	buffer := gopacket.NewSerializeBuffer()
	must(gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...))
	return buffer.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// show prints a frame for people.
func show(frame []byte) string {
	if frame == nil {
		return "(none)"
	}
	return gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy).Dump()
}
