// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// A client uses a port again while its connections are carried over: what its connection before has shown ends the new one in neither
// table, whichever programs saw it begin. What both tables show of one connection adds up.
func TestACarriedConnectionIsNotEndedByTheOneBeforeIt(t *testing.T) {
	const (
		reply       = uint32(bpf.NearlbFlowSeenSEEN_REPLY)
		established = reply | uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)
		clientEnds  = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN)
		bothEnd     = clientEnds | uint32(bpf.NearlbFlowSeenSEEN_SERVER_FIN)
		reset       = uint32(bpf.NearlbFlowSeenSEEN_RESET)
	)
	for name, row := range map[string]struct {
		first  uint32                // as it was carried
		here   func(*bpf.NearlbFlow) // what these tables' programs do with it
		second uint32                // in the other layout's tables, afterwards
		want   uint32
	}{
		"nothing happens":                       {established, nil, established, established},
		"it ends over there":                    {established, nil, established | bothEnd, established | bothEnd},
		"each table sees one side end":          {established, func(f *bpf.NearlbFlow) { f.Seen |= clientEnds }, established | bothEnd&^clientEnds, established | bothEnd},
		"another begins over there":             {established | bothEnd, nil, reply, reply},
		"another goes on here with its entry":   {established | clientEnds, func(f *bpf.NearlbFlow) { f.Seen &^= bothEnd }, established | clientEnds, established},
		"another begins here":                   {established | bothEnd, func(f *bpf.NearlbFlow) { f.Word, f.Seen = f.Word+flowClaim, established }, established | bothEnd, established},
		"a reset is taken back here":            {established | reset, func(f *bpf.NearlbFlow) { f.Seen &^= reset }, established | reset, established},
		"it is answered there, where it is new": {0, func(f *bpf.NearlbFlow) { f.Word += flowClaim }, established, established},
	} {
		s := memoryStore(tinySizes())
		s.clock = standing{}
		c := &Carrier{store: s, wrote: map[uint32]carriedFlow{}}
		settings := read[bpf.NearlbSettings](s.settings, 0)
		where := hostAddress(1)
		flow := bpf.NearlbFlow{Word: flowLive, Client: address16(hostAddress(2).Addr()), Frontend: address16(where.Addr()), KeyPort: swap16(41000),
			TwinPort: swap16(41000), FrontendPort: swap16(where.Port()), Protocol: 6, Backend: 1, Generation: 1, Seen: row.first}
		carry := func(seen uint32) {
			flow.Seen = seen
			if !c.put(flow, 0, &settings, newExpiry(s.clock)) {
				t.Errorf("%s: there is no room", name)
			}
		}
		carry(row.first)
		for at, f := range liveFlows(s) {
			if row.here != nil {
				row.here(&f)
				putFlow(s, at, f)
			}
		}
		carry(row.second)
		n := 0
		for _, f := range liveFlows(s) {
			if n++; f.Seen != row.want {
				t.Errorf("%s: the entry has seen %#x, want %#x", name, f.Seen, row.want)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d entries", name, n)
		}
	}
}

// fullBlocks is a table in which one client's port has as many connections as its own blocks have room for, and what carries a further one of a side.
func fullBlocks(t *testing.T, side bpf.NearlbSideIndex) (s *store, put func(backend int, port, other uint16, flags uint8) bool, room int) {
	t.Helper()
	sizes := tinySizes()
	sizes.FlowSets = 64
	s = memoryStore(sizes)
	s.clock = standing{}
	c := &Carrier{store: s, wrote: map[uint32]carriedFlow{}}
	settings := read[bpf.NearlbSettings](s.settings, 0)
	put = func(backend int, port, other uint16, flags uint8) bool {
		return c.put(bpf.NearlbFlow{Word: flowLive, Client: address16(hostAddress(1).Addr()), Frontend: address16(hostAddress(2).Addr()), KeyPort: swap16(port),
			TwinPort: swap16(other), FrontendPort: swap16(uint16(backend)), Protocol: 6, Backend: uint32(backend), Generation: 1, Flags: flags, Side: uint8(side),
			Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)}, 0, &settings, newExpiry(s.clock))
	}
	room = blocksOwn * flowSets * flowWays
	for i := range room {
		if !put(i+1, 41000, 41000, 0) {
			t.Fatalf("there is no room for connection %d of %d", i, room)
		}
	}
	return s, put, room
}

// A connection with two entries is carried over where its port's blocks are full as well, to where the programs look for it. One that has
// but one entry would be found there by its client's packets alone: it stays behind.
func TestAConnectionBeyondItsPortsBlocksIsCarriedToWhereItIsFound(t *testing.T) {
	s, put, room := fullBlocks(t, bpf.NearlbSideIndexSIDE_INTERNAL)
	settings := read[bpf.NearlbSettings](s.settings, 0)
	if put(room+1, 41000, 41000, 0) || s.spilled() {
		t.Error("a connection of one entry was carried to where its replies do not find it")
	}
	for range 2 {
		if !put(room+2, 41000, 50000, 0) || !put(room+2, 50000, 41000, flowAlias) || !s.spilled() {
			t.Fatal("a connection of two entries was not carried")
		}
	}
	first, second := 0, 0
	for place, f := range liveFlows(s) {
		switch {
		case f.Backend != uint32(room+2):
		case f.Flags&flowAlias == 0 && s.tagOf(place) == flowTag(flowPairHash(&f, settings.Seed)):
			first++
		case f.Flags&flowAlias != 0 && s.tagOf(place) == flowTag(flowHash(f.Client, f.KeyPort, f.Protocol, settings.Seed)):
			second++
		}
	}
	if first != 1 || second != 1 {
		t.Errorf("it has %d first and %d second entries where they are looked for", first, second)
	}
}

// One port's connections to more frontends than its blocks have entries for are all carried over, whatever comes first: one that has but one
// entry finds room in its port's blocks, as in the programs' table, and so do second entries.
func TestConnectionsOfAFullBlockAreAllCarried(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := tinySizes()
		sizes.FlowSets = 256
		s := memoryStore(sizes)
		s.clock = standing{}
		c := &Carrier{store: s, wrote: map[uint32]carriedFlow{}}
		settings := read[bpf.NearlbSettings](s.settings, 0)
		settings.Seed = rapid.Uint64().Draw(t, "seed")
		var flows []bpf.NearlbFlow
		for client := range 2 {
			for i := range 130 {
				f := bpf.NearlbFlow{Word: flowLive, Client: address16(hostAddress(2 + client).Addr()), Frontend: address16(hostAddress(1).Addr()),
					KeyPort: swap16(15000), TwinPort: swap16(uint16(20000 + i)), FrontendPort: swap16(uint16(1000 + i)), Protocol: 6, Backend: 1, Generation: 1,
					Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)}
				if i == 0 {
					f.TwinPort = f.KeyPort
					flows = append(flows, f)
					continue
				}
				flows = append(flows, f)
				f.KeyPort, f.TwinPort, f.Flags = f.TwinPort, f.KeyPort, flowAlias
				flows = append(flows, f)
			}
		}
		for range 2 { // the second time each is found where it is
			for _, f := range rapid.Permutation(flows).Draw(t, "order") {
				if !c.put(f, 0, &settings, newExpiry(s.clock)) {
					t.Fatalf("there is no room for the entry of port %d, other port %d", swap16(f.KeyPort), swap16(f.TwinPort))
				}
			}
		}
		if n := len(maps.Collect(liveFlows(s))); n != len(flows) {
			t.Errorf("%d entries are carried, want %d", n, len(flows))
		}
	})
}

// Each of the four blocks of a spilled flow is another for each port of a client, also for ports that differ in their upper bits alone.
func TestPortsOfAClientSpreadOverAllFourBlocks(t *testing.T) {
	sizes := tinySizes()
	sizes.FlowSets = 4096
	s := memoryStore(sizes)
	for i := range blocksPair {
		blocks := map[uint32]bool{}
		for port := range 16 {
			f := bpf.NearlbFlow{Client: address16(hostAddress(2).Addr()), Frontend: address16(hostAddress(1).Addr()), KeyPort: uint16(port) << 12, Protocol: 6}
			blocks[s.flowSet(flowPairHash(&f, 1), i*flowSets)/uint32(flowSets)] = true
		}
		if len(blocks) < 12 {
			t.Errorf("16 ports have %d blocks of 512 as their number %d", len(blocks), i)
		}
	}
}

// A frontend of a carried connection is made known to the fast path, but not a backend that a socket of the host was connected to: no packet would
// pass there any more without the slow path.
func TestABackendThatASocketOfTheHostLeftIsNoFrontend(t *testing.T) {
	for side, want := range map[bpf.NearlbSideIndex]bool{bpf.NearlbSideIndexSIDE_INTERNAL: false, bpf.NearlbSideIndexSIDE_EXTERNAL: true} {
		s := memoryStore(tinySizes())
		where := hostAddress(1)
		(&Carrier{store: s}).show(&bpf.NearlbFlow{Flags: flowSNAT, Side: uint8(side), Frontend: address16(where.Addr()), FrontendPort: swap16(where.Port())})
		if got := s.known(frontendPlane, address16(where.Addr()), swap16(where.Port())).isSet(s.filter); got != want {
			t.Errorf("side %d: the address is known as a frontend's: %v", side, got)
		}
	}
}

// A connection that a socket of the host took elsewhere is found by its address and port alone: where these have no room it stays behind, though one
// of a client off the node goes to blocks that its frontend names.
func TestAConnectionOfTheHostIsCarriedOnlyToWhereItIsFound(t *testing.T) {
	for side, want := range map[bpf.NearlbSideIndex]bool{bpf.NearlbSideIndexSIDE_INTERNAL: false, bpf.NearlbSideIndexSIDE_EXTERNAL: true} {
		s, put, room := fullBlocks(t, side)
		if got := put(room+1, 41000, 41000, flowSNAT); got != want || s.spilled() != want {
			t.Errorf("side %d: carried: %v, spilled: %v", side, got, s.spilled())
		}
	}
}
