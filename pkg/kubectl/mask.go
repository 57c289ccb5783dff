// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// mask puts other addresses in the place of a cluster's: the same one for the same each time, of its family, from ranges that nobody has
// (240.0.0.0/4, RFC 1112; 100::/64, RFC 6666). Loopback and unspecified ones stay. Names of nodes and pods stay, but for addresses in them.
type mask struct {
	given  map[netip.Addr]netip.Addr
	v4, v6 uint32
}

func newMask() *mask { return &mask{given: map[netip.Addr]netip.Addr{}} }

var (
	addresses = regexp.MustCompile(`[0-9A-Fa-f:.]*[:.][0-9A-Fa-f:.]+`)
	quads     = regexp.MustCompile(`[0-9]{1,3}(\.[0-9]{1,3}){3,}`)
	escaped   = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&") // by encoding/json, whose digits would be an address's
	dashed    = regexp.MustCompile(`\b[0-9]{1,3}(-[0-9]{1,3}){3}\b`)             // as in ip-10-0-0-1, and names of pods
)

func (m *mask) text(text string) string {
	text = addresses.ReplaceAllStringFunc(escaped.Replace(text), m.word)
	return dashed.ReplaceAllStringFunc(text, func(word string) string {
		address, err := netip.ParseAddr(strings.ReplaceAll(word, "-", "."))
		if err != nil {
			return word
		}
		return strings.ReplaceAll(m.of(address).String(), ".", "-")
	})
}

// word is made of what addresses are made of: one, maybe with a port, or with a sign before or behind it.
func (m *mask) word(word string) string {
	core := strings.TrimRight(strings.TrimPrefix(word, "."), ".")
	for _, try := range []string{core, strings.TrimSuffix(core, ":"), strings.TrimPrefix(core, ":")} {
		if address, err := netip.ParseAddr(try); err == nil {
			return strings.Replace(word, try, m.of(address).String(), 1)
		}
	}
	return quads.ReplaceAllStringFunc(word, func(part string) string { // 10.0.0.1:80, node10.0.0.1, 10.0.0.1.defa(ult)
		if address, err := netip.ParseAddr(part); err == nil {
			return m.of(address).String()
		}
		return part
	})
}

func (m *mask) of(address netip.Addr) netip.Addr {
	if plain := address.Unmap(); plain != address {
		return netip.AddrFrom16(m.of(plain).As16())
	}
	if address.IsLoopback() || address.IsUnspecified() {
		return address
	}
	if other, known := m.given[address]; known {
		return other
	}
	var other netip.Addr
	if address.Is4() {
		m.v4++
		other = netip.AddrFrom4([4]byte{240 | byte(m.v4>>24)&15, byte(m.v4 >> 16), byte(m.v4 >> 8), byte(m.v4)})
	} else {
		m.v6++
		other = netip.MustParseAddr(fmt.Sprintf("100::%x:%x", m.v6>>16, m.v6&0xffff))
	}
	m.given[address] = other
	return other
}
