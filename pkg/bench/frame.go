// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// frameSize is that of bpf/bench.c: every frame has it.
const frameSize = 96

const (
	protocolTCP = 6
	protocolUDP = 17
)

// frame is one packet. Bytes are made with right checksums.
type frame struct {
	src, dst netip.AddrPort
	protocol uint8
	syn      bool
	id, data uint16 // IPv4 identification and first word of the data: the words that bpf/bench.c mends checksums with
}

func (f frame) v6() bool { return f.src.Addr().Is6() }

// layout says where the parts of a frame are, in bytes from its start.
type layout struct{ source, destination, sourcePort, destinationPort, id, data uint32 }

// layout has the last two bytes of addresses; id is 0 where there is none.
func (f frame) layout() layout {
	l := layout{source: 28, destination: 32, sourcePort: 34, destinationPort: 36, id: 18, data: 42}
	if f.v6() {
		l = layout{source: 36, destination: 52, sourcePort: 54, destinationPort: 56, data: 62}
	}
	if f.protocol == protocolTCP {
		l.data += 12
	}
	return l
}

// bytes makes the Ethernet frame. It is for the loopback device, for which the kernel takes test frames: for this host.
func (f frame) bytes() []byte {
	b := []byte{0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0x08, 0}
	if f.v6() {
		b[12], b[13] = 0x86, 0xdd
	}
	size := frameSize - len(b) - 20
	if f.v6() {
		size -= 20
	}
	part := f.transport(size)
	pseudo := slices.Concat(f.src.Addr().AsSlice(), f.dst.Addr().AsSlice(), []byte{0, f.protocol}, binary.BigEndian.AppendUint16(nil, uint16(size)))
	at := map[uint8]int{protocolTCP: 16, protocolUDP: 6}[f.protocol]
	binary.BigEndian.PutUint16(part[at:], ^sum(slices.Concat(pseudo, part)))
	if part[at] == 0 && part[at+1] == 0 && f.protocol == protocolUDP {
		part[at], part[at+1] = 0xff, 0xff
	}
	return slices.Concat(b, f.network(size), part)
}

func (f frame) network(size int) []byte {
	if f.v6() {
		h := []byte{0x60, 0, 0, 0, byte(size >> 8), byte(size), f.protocol, 63}
		return slices.Concat(h, f.src.Addr().AsSlice(), f.dst.Addr().AsSlice())
	}
	h := []byte{0x45, 0, 0, byte(size + 20), byte(f.id >> 8), byte(f.id), 0x40, 0, 63, f.protocol, 0, 0}
	h = slices.Concat(h, f.src.Addr().AsSlice(), f.dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(h[10:], ^sum(h))
	return h
}

func (f frame) transport(size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint16(b, f.src.Port())
	binary.BigEndian.PutUint16(b[2:], f.dst.Port())
	if f.protocol == protocolUDP {
		binary.BigEndian.PutUint16(b[4:], uint16(size))
		binary.BigEndian.PutUint16(b[8:], f.data)
		return b
	}
	b[7], b[11], b[12], b[13], b[14] = 1, 1, 0x50, 0x10, 0x72
	if f.syn {
		b[11], b[13] = 0, 0x02
	}
	binary.BigEndian.PutUint16(b[20:], f.data)
	return b
}

// sum is the one's complement sum of 16-bit words.
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
