// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"pgregory.net/rapid"
)

func addresses(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func sourceAt(s *store, index uint8) netip.Addr {
	return optionalAddr(read[bpf.NearlbSettings](s.settings, 0).Sources[index])
}

// snatFlow is a connection whose backend sees the source of this index.
func snatFlow(s *store, index uint8) bpf.NearlbFlow {
	return bpf.NearlbFlow{Word: flowLive, Touched: s.clock.jiffies(), Protocol: 6, Flags: flowSNAT, Source: index,
		Seen: uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)}
}

func TestAnIndexThatAConnectionNamesKeepsItsAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		named := map[uint8]netip.Addr{}
		for range rapid.IntRange(1, 15).Draw(t, "steps") {
			pool := addresses("192.0.2.1", "192.0.2.2", "10.244.0.0", "2001:db8::1", "fd00::1", "198.51.100.7")
			c := Config{Sources: rapid.SliceOfDistinct(rapid.SampledFrom(pool), rapid.ID).Draw(t, "sources"),
				Node4: rapid.SampledFrom(pool).Draw(t, "node")}
			if err := b.Configure(c); err != nil {
				t.Fatal(err)
			}
			for _, a := range c.allSources() {
				if index := b.sources.index(a); index == 0 || sourceAt(s, index) != a {
					t.Fatalf("source %s has index %d, which is %s", a, index, sourceAt(s, index))
				}
			}
			if index := b.sources.index(c.Node4); rapid.Bool().Draw(t, "connect") && len(named) < flowWays {
				if _, again := named[index]; !again {
					putFlow(s, uint32(len(named)), snatFlow(s, index))
					named[index] = c.Node4
				}
			}
			if rapid.Bool().Draw(t, "later") {
				b.later()
			}
			if rapid.Bool().Draw(t, "restart") {
				b = newBench(t, s)
			}
			for index, address := range named {
				if now := sourceAt(s, index); now != address {
					t.Fatalf("source %d was %s, is %s, and a connection names it", index, address, now)
				}
			}
		}
	})
}

func TestASourceThatNothingNamesIsFreed(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	configure := func(c Config) {
		t.Helper()
		if err := b.Configure(c); err != nil {
			t.Fatal(err)
		}
	}
	old, kept := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	configure(Config{Sources: []netip.Addr{old, kept}})
	index := b.sources.index(old)
	putFlow(s, 0, snatFlow(s, index))
	configure(Config{Sources: []netip.Addr{kept}})
	b.later()
	if now := sourceAt(s, index); now != old {
		t.Fatalf("source %d is %s while a connection names it", index, now)
	}
	putFlow(s, 0, bpf.NearlbFlow{})
	b.later()
	if now := sourceAt(s, index); now.IsValid() {
		t.Errorf("source %d is still %s", index, now)
	}
	if now := sourceAt(s, b.sources.index(kept)); now != kept {
		t.Errorf("the wanted source is %s", now)
	}
}

func TestSourcesWithoutRoomAreToldAndKeepNoneOfTheOthers(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	c := Config{Node4: netip.MustParseAddr("192.0.2.200"), SNATPorts: PortRange{61000, 61009}}
	for i := range sourceLimit {
		c.Sources = append(c.Sources, netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i)))
	}
	err := b.Configure(c)
	if want := "configure tables: no room for [192.0.2.62 192.0.2.63] among the sources of SNAT, at most 63 are possible"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if b.sources.index(c.Node4) == 0 {
		t.Error("the node's own address has no index")
	}
	if got, err := b.Config(); err != nil || got.SNATPorts != c.SNATPorts || got.Node4 != c.Node4 {
		t.Errorf("the programs were told %+v (%v)", got, err)
	}
}

func TestADeviceNamesTheIndexesOfItsAddresses(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	v4, v6 := netip.MustParseAddr("10.244.1.0"), netip.MustParseAddr("fd00::1")
	other4, other6 := netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00::2")
	c := Config{Devices: map[uint32]DeviceSources{7: {v4, v6, []netip.Addr{other4, other6}}, 9: {Source4: v4}}, Sources: []netip.Addr{other4, other6}}
	if err := b.Configure(c); err != nil {
		t.Fatal(err)
	}
	seven, _, _ := s.devices.get(7)
	if sourceAt(s, seven.Source4) != v4 || sourceAt(s, seven.Source6) != v6 {
		t.Errorf("device 7 is %+v", seven)
	}
	if seven.Others4 != 1<<b.sources.index(other4) || seven.Others6 != 1<<b.sources.index(other6) {
		t.Errorf("others of device 7 are %b and %b", seven.Others4, seven.Others6)
	}
	if got, err := b.Config(); err != nil || fmt.Sprint(got.Devices) != fmt.Sprint(c.Devices) {
		t.Errorf("devices %v (%v), want %v", got.Devices, err, c.Devices)
	}
	if err := s.devices.put(11, bpf.NearlbDevice{Source4: 3}); err != nil {
		t.Fatal(err)
	}
	if err := s.devices.remove(9); err != nil {
		t.Fatal(err)
	}
	found, err := b.Audit(true)
	if err != nil || len(found) != 2 || found[0].String() != "devices 11: belongs to nothing" ||
		found[1].String() != "devices 9: is missing or has other sources" {
		t.Errorf("drift %v (%v)", found, err)
	}
	delete(c.Devices, 7)
	if err := b.Configure(c); err != nil {
		t.Fatal(err)
	}
	if _, found, _ := s.devices.get(7); found {
		t.Error("a device that is gone stays in the table")
	}
	if found, err := b.Audit(true); err != nil || len(found) > 0 {
		t.Errorf("drift %v (%v)", found, err)
	}
}

func TestSettingsChangedByHandArePutBack(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	c := Config{SNATPorts: PortRange{61000, 65535}, Node6: netip.MustParseAddr("2001:db8::1")}
	if err := b.Configure(c); err != nil {
		t.Fatal(err)
	}
	s.settings.store(0, wordPorts, 0)
	found, err := b.Audit(true)
	if err != nil || len(found) != 1 || found[0].String() != "config settings: are not as they were configured" {
		t.Errorf("drift %v (%v)", found, err)
	}
	if got, err := b.Config(); err != nil || got.SNATPorts != c.SNATPorts {
		t.Errorf("ports %v (%v), want %v", got.SNATPorts, err, c.SNATPorts)
	}
}

// The programs tell most other addresses by these bits: two for each source, and none for those that are free.
func TestEachSourceHasItsBits(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	bitsOf := func() (set int) {
		for _, word := range read[bpf.NearlbSettings](s.settings, 0).SourceBits {
			set += bits.OnesCount64(word)
		}
		return set
	}
	c := Config{Sources: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.2")}}
	if err := b.Configure(c); err != nil {
		t.Fatal(err)
	}
	if set := bitsOf(); set < 4 || set > 6 {
		t.Errorf("%d bits of three sources are set, want two of each", set)
	}
	before := read[bpf.NearlbSettings](s.settings, 0).SourceBits
	hash := sourceHash(address16(c.Sources[2]))
	for _, bit := range []uint16{hash >> 8, hash & 255} {
		if before[bit/64]>>(bit%64)&1 == 0 {
			t.Errorf("bit %d of %s is not set", bit, c.Sources[2])
		}
	}
	b.freeSource(b.sources.index(c.Sources[2]))
	b.freeSource(b.sources.index(c.Sources[1]))
	if set := bitsOf(); set < 1 || set > 2 {
		t.Errorf("%d bits of one source are set", set)
	}
}
