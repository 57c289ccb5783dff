// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
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
	cidrLimit       = len(bpf.NearlbSettings{}.Cidrs)
	wordModes       = int(unsafe.Offsetof(bpf.NearlbSettings{}.Disabled) / 4)
	wordCidrCount   = int(unsafe.Offsetof(bpf.NearlbSettings{}.CidrCount) / 4)
	wordPorts       = int(unsafe.Offsetof(bpf.NearlbSettings{}.SnatFirst) / 4)
	wordNetns       = int(unsafe.Offsetof(bpf.NearlbSettings{}.Netns) / 4)
	wordCidrs       = int(unsafe.Offsetof(bpf.NearlbSettings{}.Cidrs) / 4)
	wordSources     = int(unsafe.Offsetof(bpf.NearlbSettings{}.SourceBits) / 4)
	wordsOfSettings = int(unsafe.Sizeof(bpf.NearlbSettings{}) / 4)
)

// Configure writes what every program is told, as far as it differs. While the list of service CIDRs changes, a packet meets what
// old and new list have in common at their beginning. It returns an error for CIDRs, sources and devices without room, and writes
// all the rest nevertheless.
func (t *Tables) Configure(c Config) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var full error
	if len(c.ServiceCIDRs) > cidrLimit {
		full = fmt.Errorf("configure tables: %d service CIDRs, at most %d are possible: left out %v, where addresses that no Service has are passed",
			len(c.ServiceCIDRs), cidrLimit, c.ServiceCIDRs[cidrLimit:])
		c.ServiceCIDRs = c.ServiceCIDRs[:cidrLimit]
	}
	t.config = &c
	left := t.sources.want(c.allSources(), t.now())
	t.configure(&c)
	devices := t.writeDevices(&c)
	if devices != nil {
		devices = fmt.Errorf("configure tables: %w", devices)
	}
	tunnel := t.writeTunnel(&c)
	if tunnel != nil {
		tunnel = fmt.Errorf("configure tables: %w", tunnel)
	}
	return errors.Join(full, devices, tunnel, sourcesFull(left))
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

func (t *Tables) configure(c *Config) {
	a := t.store.settings
	old := read[bpf.NearlbSettings](a, 0)
	s := t.settingsOf(c, old)
	same := uint32(0)
	for same < min(old.CidrCount, s.CidrCount) && s.Cidrs[same] == old.Cidrs[same] {
		same++
	}
	if same < old.CidrCount {
		a.store(0, wordCidrCount, same)
	}
	writeModes(a, func(m *modes) { m.disabled, m.yield = s.Disabled, s.Yield })
	write(a, 0, s, settingsOrder()...)
}

// settingsOf is what the settings should say; old has what nobody configures.
func (t *Tables) settingsOf(c *Config, old bpf.NearlbSettings) bpf.NearlbSettings {
	s := old
	s.Disabled = 0
	if c.Disabled {
		s.Disabled = 1
	}
	s.Yield = uint8(c.Yield)
	s.Loopback4, s.Loopback6 = address16(orElse(c.Loopback4, DefaultLoopback4())), address16(orElse(c.Loopback6, DefaultLoopback6()))
	s.Netns, s.SnatFirst, s.SnatCount = c.Netns, c.SNATPorts.First, c.SNATPorts.Count()
	s.Node4, s.Node6 = optionalAddr16(c.Node4), optionalAddr16(c.Node6)
	s.NodePort4, s.NodePort6 = optionalAddr16(c.NodePort4), optionalAddr16(c.NodePort6)
	s.SnatQuietFirst, s.SnatQuietCount, s.SnatWide = c.SNATQuiet.First, c.SNATQuiet.Count(), 0
	if c.SNATWide {
		s.SnatWide = 1
	}
	s.Shortcut = uint8(c.Shortcut)
	t.sources.fill(&s)
	s.CidrCount = uint32(len(c.ServiceCIDRs))
	clear(s.Cidrs[:])
	for i, p := range c.ServiceCIDRs {
		s.Cidrs[i].Address, s.Cidrs[i].Mask = cidrOf(p)
	}
	return s
}

// settingsOrder is all that Configure changes, beside the modes: the sources before the ports, without which there is no SNAT, and the number
// of CIDRs last.
func settingsOrder() []int {
	order := append(sourceWords(), wordPorts, wordPorts+1, wordPorts+2)
	for i := wordNetns; i < wordSources; i++ {
		order = append(order, i)
	}
	return append(order, wordCidrCount)
}

// sourceWords are those of the table of sources and of its bits.
func sourceWords() (order []int) {
	for i := wordSources; i < wordsOfSettings; i++ {
		order = append(order, i)
	}
	return order
}

// settings compares the live settings with what was configured.
func (a *audit) settings() error {
	t := a.t
	if t.config == nil {
		return nil
	}
	live := read[bpf.NearlbSettings](t.store.settings, 0)
	if live == t.settingsOf(t.config, live) {
		return nil
	}
	return a.note("config", "settings", "are not as they were configured", func() error { t.configure(t.config); return nil })
}

func orElse(a, other netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return other
}
