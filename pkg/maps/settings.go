// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// DefaultLoopback4 is the source of hairpin connections: link-local, so no route and no other host has it.
func DefaultLoopback4() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 20, 20}) }

// DefaultLoopback6 is likewise, from the range of unique local addresses (RFC 4193).
func DefaultLoopback6() netip.Addr { return netip.MustParseAddr("fd6e:6561:726c:6200::1") }

// The words of the settings, as laid out in bpf/lib/types.h.
const (
	cidrLimit        = len(bpf.NearlbSettings{}.Cidrs)
	wordDisabled     = int(unsafe.Offsetof(bpf.NearlbSettings{}.Disabled) / 4)
	wordCidrCount    = int(unsafe.Offsetof(bpf.NearlbSettings{}.CidrCount) / 4)
	wordCidrs        = int(unsafe.Offsetof(bpf.NearlbSettings{}.Cidrs) / 4)
	wordsOfCidrs     = int(unsafe.Sizeof(bpf.NearlbSettings{}.Cidrs) / 4)
	wordLoopbacks    = int(unsafe.Offsetof(bpf.NearlbSettings{}.Loopback4) / 4)
	wordsOfLoopbacks = int(2 * unsafe.Sizeof(bpf.NearlbAddress{}) / 4)
)

// Configure tells the programs. Only what differs is written; while the list of service CIDRs changes, packets meet those
// that old and new list have first in common.
func (t *Tables) Configure(c Config) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(c.ServiceCIDRs) > cidrLimit {
		return fmt.Errorf("configure tables: %d service CIDRs, at most %d are possible", len(c.ServiceCIDRs), cidrLimit)
	}
	return t.configure(c)
}

// defaults fills the loopback addresses of new tables.
func (t *Tables) defaults() error {
	s := read[bpf.NearlbSettings](t.store.settings, 0)
	if s.Loopback4 != (bpf.NearlbAddress{}) && s.Loopback6 != (bpf.NearlbAddress{}) {
		return nil
	}
	s.Loopback4, s.Loopback6 = address16(DefaultLoopback4()), address16(DefaultLoopback6())
	write(t.store.settings, 0, s)
	return nil
}

func (t *Tables) configure(c Config) error {
	a := t.store.settings
	old := read[bpf.NearlbSettings](a, 0)
	s := old
	s.Disabled = 0
	if c.Disabled {
		s.Disabled = 1
	}
	s.Loopback4, s.Loopback6 = address16(orElse(c.Loopback4, DefaultLoopback4())), address16(orElse(c.Loopback6, DefaultLoopback6()))
	s.CidrCount = uint32(len(c.ServiceCIDRs))
	clear(s.Cidrs[:])
	for i, p := range c.ServiceCIDRs {
		s.Cidrs[i].Address, s.Cidrs[i].Mask = cidrOf(p)
	}
	same := uint32(0)
	for same < min(old.CidrCount, s.CidrCount) && s.Cidrs[same] == old.Cidrs[same] {
		same++
	}
	if same < old.CidrCount {
		a.store(0, wordCidrCount, same)
	}
	write(a, 0, s, settingsOrder()...)
	return nil
}

// settingsOrder is all that Configure changes, the number of CIDRs last.
func settingsOrder() []int {
	order := []int{wordDisabled}
	for i := range wordsOfLoopbacks {
		order = append(order, wordLoopbacks+i)
	}
	for i := range wordsOfCidrs {
		order = append(order, wordCidrs+i)
	}
	return append(order, wordCidrCount)
}

func orElse(a, other netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return other
}
