// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

const (
	flowWriting = uint32(bpf.NearlbFlowPhaseFLOW_WRITING)
	flowClaim   = flowPhase + 1 // one in the count of claims
	wordTouched = int(unsafe.Offsetof(bpf.NearlbFlow{}.Touched) / 4)
	wordSeen    = int(unsafe.Offsetof(bpf.NearlbFlow{}.Seen) / 4)
	wordOfFlow  = int(unsafe.Offsetof(bpf.NearlbFlow{}.Word) / 4)
)

// flowHash is flow_hash of bpf/lib/hash.h.
func flowHash(a bpf.NearlbAddress, port uint16, protocol uint8, seed uint64) uint64 {
	low, high := binary.LittleEndian.Uint64(a.Bytes[:8]), binary.LittleEndian.Uint64(a.Bytes[8:])
	x := (high ^ seed) * 0x9e3779b97f4a7c15
	x ^= x >> 32
	x ^= low ^ uint64(uint32(protocol)<<16|uint32(port))*0xbf58476d1ce4e5b9
	x *= 0xff51afd7ed558ccd
	return x ^ x>>32
}

// carriedFlow is what Carrier wrote to an entry last.
type carriedFlow struct{ word, seen uint32 }

// flows looks at the sets that have changed since the last time.
func (c *Carrier) flows(f *bpf.Former, known *identities, done *Carried) error {
	if err := f.Needs("flows", "ways.word", "ways.client", "ways.frontend", "ways.port", "ways.other_port", "ways.frontend_port",
		"ways.backend", "ways.generation", "ways.protocol", "ways.flags"); err != nil {
		return err
	}
	settings := read[bpf.NearlbSettings](c.store.settings, 0)
	expiry := newExpiry(c.store.clock)
	return bpf.Changes(f, "flows", func(_ uint32, set bpf.NearlbFlowSet) error {
		for _, flow := range set.Ways {
			if flow.Word&flowPhase != flowLive || expiry.expired(&flow) {
				continue
			}
			if !known.translate(&flow) || !c.put(flow, &settings, expiry) {
				done.Left++
				continue
			}
			c.show(&flow)
			done.Flows++
		}
		return nil
	})
}

// show has the fast path look for a connection's packets, also where its frontend is gone. A bit that is set for it alone stays until the
// next start looks for bits that nothing needs.
func (c *Carrier) show(f *bpf.NearlbFlow) {
	of := frontendPlane
	if f.Flags&flowDirect != 0 {
		of = backendPlane
	}
	if of == frontendPlane && c.store.known(of, f.Frontend, 0).isSet(c.store.filter) {
		return // the address is known whatever the port
	}
	c.store.known(of, f.Frontend, f.FrontendPort).put(c.store.filter)
}

// put brings one entry over; false when its set has no room.
func (c *Carrier) put(f bpf.NearlbFlow, settings *bpf.NearlbSettings, e expiry) bool {
	at := f.Client
	if f.Flags&(flowSNAT|flowAlias) == flowSNAT|flowAlias { // found by what the backend sees
		at = settings.Sources[int(f.Source)%len(settings.Sources)]
	}
	hash := flowHash(at, f.Port, f.Protocol, settings.Seed)
	set, start := uint32(hash)&(c.store.flows.size-1), int(hash>>61)
	for range readAttempts {
		way, have := c.find(set, start, &f)
		if way >= 0 && sameFlow(&have, &f) {
			c.merge(set, way, have.Word, &f)
			return true
		}
		if way >= 0 && !c.later(set, way, &have, &f) {
			return true
		}
		if way < 0 {
			way, have = c.taken(set, &f)
			if way >= 0 && c.wrote[place(set, way)].word != have.Word {
				return false
			}
		}
		if way < 0 {
			if way, have.Word = c.room(set, start, e); way < 0 {
				return false
			}
		}
		if c.claim(set, way, have.Word, &f) {
			return true
		}
	}
	return false
}

// find looks for an entry of the same ends.
func (c *Carrier) find(set uint32, start int, f *bpf.NearlbFlow) (way int, have bpf.NearlbFlow) {
	for i := range flowWays {
		way = (start + i) % flowWays
		have, ok := readFlow(c.store.flows, set, way)
		if ok && have.Client == f.Client && have.Frontend == f.Frontend && have.Port == f.Port && have.FrontendPort == f.FrontendPort &&
			have.Protocol == f.Protocol && (have.Flags^f.Flags)&flowAlias == 0 && (f.Flags&flowAlias == 0 || have.OtherPort == f.OtherPort) {
			return way, have
		}
	}
	return -1, have
}

// taken finds another connection's second entry with the port that the backend sees, -1 none: replies would be anybody's. One
// that these tables' programs made is theirs; one that was carried here is over, as its port was given to this one since.
func (c *Carrier) taken(set uint32, f *bpf.NearlbFlow) (way int, have bpf.NearlbFlow) {
	if f.Flags&flowAlias == 0 {
		return -1, have
	}
	for way := range flowWays {
		have, ok := readFlow(c.store.flows, set, way)
		if ok && have.Flags == f.Flags && have.Port == f.Port && have.Protocol == f.Protocol && have.Backend == f.Backend &&
			have.Source == f.Source && (f.Flags&flowSNAT != 0 || have.Client == f.Client) {
			return way, have
		}
	}
	return -1, have
}

func sameFlow(a, b *bpf.NearlbFlow) bool {
	return a.Backend == b.Backend && a.Generation == b.Generation && a.OtherPort == b.OtherPort && a.Flags == b.Flags && a.Source == b.Source
}

// later tells whether the other layout's entry is the newer one: it had a packet later, or nobody but us has written this one.
func (c *Carrier) later(set uint32, way int, have, f *bpf.NearlbFlow) bool {
	if f.Touched != have.Touched {
		return int32(f.Touched-have.Touched) > 0
	}
	return c.wrote[place(set, way)].word == have.Word
}

func place(set uint32, way int) uint32 { return set*uint32(flowWays) + uint32(way) }

// merge brings an entry up to date with what the connection has shown since it was carried, and takes back what was another one's, from
// the same port. Of an entry that these tables' programs made, the other layout knows the end of the connection before at best. An entry
// that another took in the meantime gets it wrongly: a bit of another's state, which its own packets would have set soon.
func (c *Carrier) merge(set uint32, way int, word uint32, f *bpf.NearlbFlow) {
	a, base := c.store.flows, way*flowWords
	add, gone := f.Seen&uint32(bpf.NearlbFlowSeenSEEN_REPLY|bpf.NearlbFlowSeenSEEN_ESTABLISHED), uint32(0)
	if last := c.wrote[place(set, way)]; last.word == word {
		add, gone = f.Seen&^last.seen, last.seen&^f.Seen
		c.wrote[place(set, way)] = carriedFlow{word, f.Seen}
	}
	if a.load(set, base+wordSeen)&add != add {
		atomic.OrUint32(a.word(set, base+wordSeen), add)
	}
	if a.load(set, base+wordSeen)&gone != 0 {
		atomic.AndUint32(a.word(set, base+wordSeen), ^gone)
	}
	if touched := a.load(set, base+wordTouched); int32(f.Touched-touched) > 0 {
		atomic.CompareAndSwapUint32(a.word(set, base+wordTouched), touched, f.Touched)
	}
}

// room is a way that the programs would take too: free, expired, closed, or else the one that waits for an answer longest.
func (c *Carrier) room(set uint32, start int, e expiry) (way int, word uint32) {
	way = -1
	best, oldest := 0, uint64(0)
	for i := range flowWays {
		at := (start + i) % flowWays
		have := c.store.flows.load(set, at*flowWords+wordOfFlow)
		f, used := readFlow(c.store.flows, set, at)
		rank := 0
		switch {
		case !used && have&flowPhase == 0:
			return at, have
		case !used || f.Word != have || have&flowPhase != flowLive:
		case e.expired(&f):
			rank = 3
		case closed(f.Seen) && !holdsPort(&f):
			rank = 2
		case f.Seen&uint32(bpf.NearlbFlowSeenSEEN_REPLY) == 0:
			rank = 1
		}
		if rank > best || rank == best && rank > 0 && e.idle(&f) > oldest {
			way, word, best, oldest = at, have, rank, e.idle(&f)
		}
	}
	return way, word
}

// claim writes an entry as the programs do: shown to other writers first, and taken back if one of them has the same.
func (c *Carrier) claim(set uint32, way int, word uint32, f *bpf.NearlbFlow) bool {
	a, base := c.store.flows, way*flowWords
	claimed := word&^flowPhase + flowClaim
	if !atomic.CompareAndSwapUint32(a.word(set, base+wordOfFlow), word, claimed|flowWriting) {
		return false
	}
	for i, value := range wordsOf(f) {
		if i != wordOfFlow {
			a.store(set, base+i, value)
		}
	}
	a.store(set, base+wordOfFlow, claimed|flowClaimed)
	// The programs take a claimed entry that they find abandoned: it is published only if it is ours yet.
	publish := func(phase uint32) bool {
		return atomic.CompareAndSwapUint32(a.word(set, base+wordOfFlow), claimed|flowClaimed, claimed|phase)
	}
	if c.twice(set, way, f) {
		publish(uint32(bpf.NearlbFlowPhaseFLOW_FREE))
		return false
	}
	if !publish(flowLive) {
		return false
	}
	c.wrote[place(set, way)] = carriedFlow{claimed | flowLive, f.Seen}
	return true
}

func (c *Carrier) twice(set uint32, way int, f *bpf.NearlbFlow) bool {
	for at := range flowWays {
		if found, _ := c.find(set, at, f); found >= 0 && found != way {
			return true
		}
	}
	return false
}
