// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// address16 is an address as the tables have it: 16 bytes, IPv4 as ::ffff:a.b.c.d.
func address16(a netip.Addr) bpf.NearlbAddress { return bpf.NearlbAddress{Bytes: a.As16()} }

// addrOf is the reverse: mapped addresses come back as IPv4.
func addrOf(a bpf.NearlbAddress) netip.Addr { return netip.AddrFrom16(a.Bytes).Unmap() }

// swap16 turns a port between the machine's and the network's byte order.
func swap16(port uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}

func swap32(n uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return binary.BigEndian.Uint32(b[:])
}

func keyOf(k lb.FrontendKey) frontendKey {
	return frontendKey{Address: address16(k.Address.Addr()), Port: swap16(k.Address.Port()), Protocol: uint8(k.Protocol)}
}

// nameOf is keyOf, back.
func nameOf(k frontendKey) lb.FrontendKey {
	return lb.FrontendKey{Address: netip.AddrPortFrom(addrOf(k.Address), swap16(k.Port)), Protocol: lb.Protocol(k.Protocol)}
}

// addressKey is the key of the entry that says "this address belongs to a service".
func addressKey(a netip.Addr) frontendKey { return frontendKey{Address: address16(a)} }

func isAddressKey(k frontendKey) bool { return k.Port == 0 && k.Protocol == 0 }

func keyText(k frontendKey) string {
	if isAddressKey(k) {
		return addrOf(k.Address).String()
	}
	return nameOf(k).String()
}

// AddrPortOf is where a row of the table backends leads to.
func AddrPortOf(b bpf.NearlbBackend) netip.AddrPort {
	return netip.AddrPortFrom(addrOf(b.Address), swap16(b.Port))
}

// rangeOf is the key of one source range of a service port. A trie compares from the first bit on: prefix_bits counts the
// id and, for IPv4, the 96 bits before the address.
func rangeOf(service uint32, p netip.Prefix) rangeKey {
	bits := uint32(p.Bits())
	if p.Addr().Is4() {
		bits += 96
	}
	return rangeKey{PrefixBits: 32 + bits, Service: swap32(service), Source: address16(p.Masked().Addr())}
}

func prefixOf(k rangeKey) netip.Prefix {
	address, bits := addrOf(k.Source), int(k.PrefixBits)-32
	if address.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(address, bits)
}

// cidrOf writes a prefix as address and mask.
func cidrOf(p netip.Prefix) (address, mask bpf.NearlbAddress) {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	for i := range bits {
		mask.Bytes[i/8] |= 0x80 >> (i % 8)
	}
	return address16(p.Masked().Addr()), mask
}

func prefixOfCidr(address, mask bpf.NearlbAddress) netip.Prefix {
	bits := 0
	for _, b := range mask.Bytes {
		for ; b != 0; b <<= 1 {
			bits++
		}
	}
	if a := addrOf(address); a.Is4() {
		return netip.PrefixFrom(a, bits-96)
	}
	return netip.PrefixFrom(addrOf(address), bits)
}

const nameLimit = len(bpf.NearlbNameValue{}.Text) - 1

func nameValue(text string) (v bpf.NearlbNameValue) {
	for i := range min(len(text), nameLimit) {
		v.Text[i] = int8(text[i])
	}
	return v
}

func nameText(v bpf.NearlbNameValue) string {
	var b strings.Builder
	for _, c := range v.Text {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// parsePortName reads lb.PortName's text.
func parsePortName(text string) (p lb.PortName, err error) {
	slash := strings.LastIndexByte(text, '/')
	if slash < 0 {
		return p, fmt.Errorf("read service port %q: no protocol", text)
	}
	service, port, _ := strings.Cut(text[:slash], ":")
	if p.Protocol, err = lb.ParseProtocol(text[slash+1:]); err != nil {
		return p, err
	}
	p.Port = port
	return p, p.Service.UnmarshalText([]byte(service))
}

// portText is lb.PortName's text from its parts.
func portText(service, port, protocol string) string {
	if port == "" {
		return service + "/" + protocol
	}
	return service + ":" + port + "/" + protocol
}

func hostPort(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
