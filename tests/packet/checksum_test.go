// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// parsed is what checkFrame found in a frame whose headers hold together.
type parsed struct {
	v6        bool
	src, dst  []byte
	protocol  lb.Protocol
	header    int    // offset of the IP header
	transport []byte // behind the IP headers, cut at the IP length
	first     bool   // not a later fragment
	whole     bool   // not a fragment at all
}

// parse reads the IP headers of a frame. False: not IPv4 or IPv6, or headers that contradict each other or the frame.
func parse(frame []byte) (parsed, bool) {
	if len(frame) < 34 {
		return parsed{}, false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return parseIPv4(frame[14:])
	case 0x86dd:
		return parseIPv6(frame[14:])
	}
	return parsed{}, false
}

func parseIPv4(ip []byte) (parsed, bool) {
	size, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	if ip[0]>>4 != 4 || size < 20 || total < size || total > len(ip) {
		return parsed{}, false
	}
	frag := binary.BigEndian.Uint16(ip[6:])
	return parsed{
		src: ip[12:16], dst: ip[16:20], protocol: lb.Protocol(ip[9]), header: size, transport: ip[size:total],
		first: frag&0x1fff == 0, whole: frag&0x3fff == 0,
	}, true
}

func parseIPv6(ip []byte) (parsed, bool) {
	if len(ip) < 40 || ip[0]>>4 != 6 || int(binary.BigEndian.Uint16(ip[4:]))+40 > len(ip) {
		return parsed{}, false
	}
	p := parsed{v6: true, src: ip[8:24], dst: ip[24:40], protocol: lb.Protocol(ip[6]), header: 40, first: true, whole: true}
	ip = ip[:40+int(binary.BigEndian.Uint16(ip[4:]))]
	for {
		size := 8
		switch p.protocol {
		case 0, 43, 60, 135:
			if len(ip) < p.header+8 {
				return parsed{}, false
			}
			size = int(ip[p.header+1])*8 + 8
		case 51:
			if len(ip) < p.header+8 {
				return parsed{}, false
			}
			size = int(ip[p.header+1])*4 + 8
		case 44:
			if len(ip) < p.header+8 {
				return parsed{}, false
			}
			word := binary.BigEndian.Uint16(ip[p.header+2:])
			p.first, p.whole = word&0xfff8 == 0, word&0xfff9 == 0
		default:
			p.transport = ip[p.header:]
			return p, true
		}
		if len(ip) < p.header+size {
			return parsed{}, false
		}
		p.protocol = lb.Protocol(ip[p.header])
		p.header += size
		if !p.first {
			p.transport = ip[p.header:]
			return p, true
		}
	}
}

// sum adds 16-bit words in one's complement.
func sum(start uint32, data []byte) uint32 {
	for i, b := range data {
		if i%2 == 0 {
			start += uint32(b) << 8
		} else {
			start += uint32(b)
		}
		start = start&0xffff + start>>16
	}
	return start
}

// checkChecksums computes every checksum of a frame from scratch: IPv4 header, TCP, UDP, SCTP, ICMP and ICMPv6, and those of
// a packet that an ICMP error quotes as far as the quotation goes. A frame without IP, or one whose headers do not hold
// together, has none.
func checkChecksums(frame []byte) error {
	p, ok := parse(frame)
	if !ok {
		return nil
	}
	return p.check(frame[14:])
}

func (p parsed) check(ip []byte) error {
	if !p.v6 && sum(0, ip[:p.header]) != 0xffff {
		return fmt.Errorf("check IPv4 header: checksum %#04x is wrong", binary.BigEndian.Uint16(ip[10:]))
	}
	if !p.whole {
		return nil
	}
	return p.checkTransport()
}

// checkOuter checks an answer without what it quotes: the quoted packet's checksum may have been a partial one.
func (p parsed) checkOuter(ip []byte) error {
	start := uint32(0)
	if p.v6 || p.protocol == lb.TCP {
		start = p.pseudo()
	}
	if !p.v6 && sum(0, ip[:p.header]) != 0xffff {
		return fmt.Errorf("check IPv4 header: checksum %#04x is wrong", binary.BigEndian.Uint16(ip[10:]))
	}
	if sum(start, p.transport) != 0xffff {
		return fmt.Errorf("check protocol %d: checksum is wrong", p.protocol)
	}
	return nil
}

func (p parsed) pseudo() uint32 {
	return sum(uint32(p.protocol)+uint32(len(p.transport)), append(append([]byte{}, p.src...), p.dst...))
}

func (p parsed) checkTransport() error {
	t := p.transport
	switch {
	case p.protocol == lb.TCP && len(t) >= 20:
		if sum(p.pseudo(), t) != 0xffff {
			return fmt.Errorf("check TCP: checksum %#04x is wrong", binary.BigEndian.Uint16(t[16:]))
		}
	case p.protocol == lb.UDP && len(t) >= 8:
		return p.checkUDP()
	case p.protocol == lb.SCTP && len(t) >= 12:
		zeroed := append([]byte{}, t...)
		copy(zeroed[8:12], []byte{0, 0, 0, 0})
		if crc32.Checksum(zeroed, crc32.MakeTable(crc32.Castagnoli)) != binary.LittleEndian.Uint32(t[8:]) {
			return fmt.Errorf("check SCTP: checksum is wrong")
		}
	case p.protocol == protocolICMP && !p.v6 && len(t) >= 8:
		if sum(0, t) != 0xffff {
			return fmt.Errorf("check ICMP: checksum %#04x is wrong", binary.BigEndian.Uint16(t[2:]))
		}
		return checkQuoted(t, t[0] == 3 || t[0] == 11 || t[0] == 12)
	case p.protocol == protocolICMPv6 && p.v6 && len(t) >= 8:
		if sum(p.pseudo(), t) != 0xffff {
			return fmt.Errorf("check ICMPv6: checksum %#04x is wrong", binary.BigEndian.Uint16(t[2:]))
		}
		return checkQuoted(t, t[0] < 128)
	}
	return nil
}

// checkUDP wants the datagram to fill the packet: a UDP length that says otherwise has no right checksum.
func (p parsed) checkUDP() error {
	stored := binary.BigEndian.Uint16(p.transport[6:])
	if int(binary.BigEndian.Uint16(p.transport[4:])) != len(p.transport) || stored == 0 {
		return nil
	}
	if sum(p.pseudo(), p.transport) != 0xffff {
		return fmt.Errorf("check UDP: checksum %#04x is wrong", stored)
	}
	return nil
}

// checkQuoted looks into an ICMP error. A whole quotation has right checksums; of a cut one the IP header alone can be
// checked.
func checkQuoted(message []byte, isError bool) error {
	if !isError || len(message) < 8+20 {
		return nil
	}
	quoted := message[8:]
	var p parsed
	var ok bool
	if quoted[0]>>4 == 6 {
		p, ok = parseIPv6(quoted)
	} else {
		if p, ok = parseIPv4(quoted); !ok {
			if size := int(quoted[0]&15) * 4; size >= 20 && size <= len(quoted) && sum(0, quoted[:size]) != 0xffff {
				return fmt.Errorf("check quoted IPv4 header: checksum is wrong")
			}
		}
	}
	if !ok {
		return nil
	}
	if err := p.check(quoted); err != nil {
		return fmt.Errorf("quoted packet: %w", err)
	}
	return nil
}

// endpoints are a frame's addresses and ports.
func endpoints(t testing.TB, frame []byte) (src, dst netip.AddrPort) {
	t.Helper()
	p, ok := parse(frame)
	if !ok || len(p.transport) < 4 {
		t.Fatalf("read addresses: frame is broken\n%s", show(frame))
	}
	return p.endpoints()
}

// endpoints are the addresses and ports of a packet that has them.
func (p parsed) endpoints() (src, dst netip.AddrPort) {
	s, _ := netip.AddrFromSlice(p.src)
	d, _ := netip.AddrFromSlice(p.dst)
	return netip.AddrPortFrom(s, binary.BigEndian.Uint16(p.transport)), netip.AddrPortFrom(d, binary.BigEndian.Uint16(p.transport[2:]))
}
