// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lb"
)

// ICMP asks what happens to an echo request: ICMP for IPv4, ICMPv6 for IPv6. It has no ports.
const ICMP lb.Protocol = 1

const (
	icmpv6         = 58 // its IANA number
	etherHeader    = 14
	ipv4Header     = 20
	ipv6Header     = 40
	tcpHeader      = 20
	udpHeader      = 8
	etherTypeIPv4  = 0x0800
	etherTypeIPv6  = 0x86dd
	timeToLive     = 64
	tcpFlagSYN     = 0x02
	dontFragment   = 0x4000
	echoRequest    = 8
	echoRequestV6  = 128
	sctpInit       = 32 // common header 12, chunk INIT 20
	echoIdentifier = 0x6e6c
)

// firstPacket is the frame that opens a connection: TCP SYN, a UDP datagram, SCTP INIT or an echo request, with right
// checksums. Both addresses are of one family, IPv4 never in its mapped form. device: who receives the frame; nil is all zeros. data: what a
// UDP datagram carries.
func firstPacket(device net.HardwareAddr, source, to netip.AddrPort, protocol lb.Protocol, data []byte) []byte {
	payload := transport(source, to, protocol, data)
	header := networkHeader(source.Addr(), to.Addr(), protocol, len(payload))
	frame := make([]byte, etherHeader, 128)
	copy(frame[:6], device)
	copy(frame[6:], []byte{0x02, 0, 0, 0, 0, 0x02})
	etherType := uint16(etherTypeIPv4)
	if to.Addr().Is6() {
		etherType = etherTypeIPv6
	}
	binary.BigEndian.PutUint16(frame[12:], etherType)
	return append(append(frame, header...), payload...)
}

func networkHeader(source, to netip.Addr, protocol lb.Protocol, payload int) []byte {
	if to.Is6() {
		h := make([]byte, ipv6Header)
		h[0] = 0x60
		binary.BigEndian.PutUint16(h[4:], uint16(payload))
		h[6], h[7] = onWire(protocol, true), timeToLive
		copy(h[8:], source.AsSlice())
		copy(h[24:], to.AsSlice())
		return h
	}
	h := make([]byte, ipv4Header)
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Header+payload))
	binary.BigEndian.PutUint16(h[6:], dontFragment)
	h[8], h[9] = timeToLive, onWire(protocol, false)
	copy(h[12:], source.AsSlice())
	copy(h[16:], to.AsSlice())
	binary.BigEndian.PutUint16(h[10:], finish(sum(0, h)))
	return h
}

func onWire(protocol lb.Protocol, v6 bool) byte {
	if protocol == ICMP && v6 {
		return icmpv6
	}
	return byte(protocol)
}

// transport is the header behind IP and what it carries.
func transport(source, to netip.AddrPort, protocol lb.Protocol, data []byte) []byte {
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source.Port()), to.Port())
	v6 := to.Addr().Is6()
	switch protocol {
	case lb.TCP:
		p := append(ports, make([]byte, tcpHeader-len(ports))...)
		binary.BigEndian.PutUint32(p[4:], 1) // sequence number
		p[12], p[13] = tcpHeader/4<<4, tcpFlagSYN
		binary.BigEndian.PutUint16(p[14:], 64240) // window
		binary.BigEndian.PutUint16(p[16:], finish(sum(pseudo(source, to, protocol, len(p)), p)))
		return p
	case lb.UDP:
		p := append(append(ports, make([]byte, udpHeader-len(ports))...), data...)
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)))
		check := finish(sum(pseudo(source, to, protocol, len(p)), p))
		if check == 0 {
			check = 0xffff // RFC 768: 0 means no checksum
		}
		binary.BigEndian.PutUint16(p[6:], check)
		return p
	case lb.SCTP: // its checksum (CRC32c) does not cover addresses and is left alone by the programs
		p := append(ports, make([]byte, sctpInit-len(ports))...)
		p[12], p[15] = 1, 20 // chunk INIT and its length
		return p
	}
	p := []byte{echoRequest, 0, 0, 0, echoIdentifier >> 8, echoIdentifier & 0xff, 0, 1}
	start := uint32(0)
	if v6 {
		p[0] = echoRequestV6
		start = pseudo(source, to, protocol, len(p))
	}
	binary.BigEndian.PutUint16(p[2:], finish(sum(start, p)))
	return p
}

// pseudo is the sum over the pseudo header of RFC 793 and RFC 8200.
func pseudo(source, to netip.AddrPort, protocol lb.Protocol, length int) uint32 {
	total := sum(sum(0, source.Addr().AsSlice()), to.Addr().AsSlice())
	return total + uint32(onWire(protocol, to.Addr().Is6())) + uint32(length)
}

// sum adds 16-bit words, the last one as if a zero followed; finish folds and inverts (RFC 1071).
func sum(total uint32, data []byte) uint32 {
	for i := 0; i+1 < len(data); i += 2 {
		total += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	if len(data)%2 == 1 {
		total += uint32(data[len(data)-1]) << 8
	}
	return total
}

func finish(total uint32) uint16 {
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// ends reads source and destination out of a frame that firstPacket made and a program changed. False: it is no such frame.
func ends(frame []byte) (source, to netip.AddrPort, ok bool) {
	if len(frame) < etherHeader+ipv4Header {
		return source, to, false
	}
	ip := frame[etherHeader:]
	var addresses, rest []byte
	size := 4
	switch {
	case ip[0]>>4 == 4:
		addresses, rest = ip[12:20], ip[ipv4Header:]
	case ip[0]>>4 == 6 && len(ip) >= ipv6Header:
		addresses, rest, size = ip[8:40], ip[ipv6Header:], 16
	default:
		return source, to, false
	}
	var ports [4]byte
	copy(ports[:], rest)
	from, _ := netip.AddrFromSlice(addresses[:size])
	dest, _ := netip.AddrFromSlice(addresses[size:])
	return netip.AddrPortFrom(from, binary.BigEndian.Uint16(ports[:])),
		netip.AddrPortFrom(dest, binary.BigEndian.Uint16(ports[2:])), true
}
