// SPDX-License-Identifier: Apache-2.0

package maps

import (
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
	begun := map[uint32]bpf.NearlbFlowBegun{}
	err := bpf.Rows(f, "flow_begun", func(index uint32, set bpf.NearlbFlowBegun) error {
		if set != (bpf.NearlbFlowBegun{}) {
			begun[index] = set
		}
		return nil
	})
	if err != nil {
		return err
	}
	return bpf.Changes(f, "flows", func(index uint32, set bpf.NearlbFlowSet) error {
		for way, flow := range set.Ways {
			if flow.Word&flowPhase != flowLive || expiry.expired(&flow) {
				continue
			}
			flow.Seen &^= seenCounted // nobody has counted it here: Recount does
			if !known.translate(&flow) || !c.put(flow, begun[index].Ways[way], &settings, expiry) {
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
	if ofHost(f) {
		return // of a socket of the host: its frontend is a backend, and its packets are looked for by their source
	}
	of := frontendPlane
	if f.Flags&flowDirect != 0 {
		of = backendPlane
	}
	if of == frontendPlane && c.store.known(of, f.Frontend, 0).isSet(c.store.filter) {
		return // the address is known whatever the port
	}
	c.store.known(of, f.Frontend, f.FrontendPort).put(c.store.filter)
}

// put brings one entry over, with when it was made; false when its blocks have no room.
func (c *Carrier) put(f bpf.NearlbFlow, begun uint32, settings *bpf.NearlbSettings, e expiry) bool {
	at := f.Client
	if f.Flags&(flowSNAT|flowAlias) == flowSNAT|flowAlias { // found by what the backend sees
		at = settings.Sources[int(f.Source)%len(settings.Sources)]
	}
	keys := flowKeys{own: flowHash(at, f.KeyPort, f.Protocol, settings.Seed)}
	if f.Flags&flowAlias == 0 {
		keys.pair = flowPairHash(&f, settings.Seed)
	}
	for range readAttempts {
		hash, place, have, found := c.find(keys, &f)
		if found && sameFlow(&have, &f) {
			c.merge(place, have.Word, &f)
			return true
		}
		if found && !c.later(place, &have, &f) {
			return true
		}
		if !found {
			hash = keys.own
			place, have, found = c.taken(hash, &f)
			if found && c.wrote[place].word != have.Word {
				return false
			}
		}
		if !found {
			if hash, place, have.Word, found = c.roomFor(keys, &f, e); !found {
				return false
			}
		}
		if hash != keys.own && !hasTwin(&f) {
			return false // its replies would not find it there
		}
		if c.claim(keys, hash, place, have.Word, &f, begun) {
			return true
		}
	}
	return false
}

// flowKeys are the hashes by which a connection's entry may be found; pair is 0 for a second entry.
type flowKeys struct{ own, pair uint64 }

// hasTwin is flow_has_twin of bpf/lib/flow.h.
func hasTwin(f *bpf.NearlbFlow) bool { return f.Flags&flowSNAT != 0 || f.TwinPort != f.KeyPort }

// find looks for an entry of the same ends, and tells by which hash it is found.
func (c *Carrier) find(keys flowKeys, f *bpf.NearlbFlow) (hash uint64, place uint32, have bpf.NearlbFlow, found bool) {
	for hash, place := range c.store.tagged(keys) {
		have, ok := readFlow(c.store.flows, place)
		if ok && sameEnds(&have, f) {
			return hash, place, have, true
		}
	}
	return 0, 0, have, false
}

// roomFor is room where the programs would look for it. A connection with a second entry, if it is not of a socket of the host, has another place than
// its own: it leaves the last entries of its own blocks to those that have none, while it has room there.
func (c *Carrier) roomFor(keys flowKeys, f *bpf.NearlbFlow, e expiry) (hash uint64, place, word uint32, found bool) {
	apart := keys.pair != 0 && hasTwin(f) && !ofHost(f) && c.store.flows.size >= blocksPair*uint32(flowSets)
	if !apart || !c.store.leaves(keys.own) {
		place, word, found = c.room(keys.own, blocksOwn, e)
	}
	if found || !apart {
		return keys.own, place, word, found
	}
	c.store.spill()
	if place, word, found = c.room(keys.pair, blocksPair, e); found {
		return keys.pair, place, word, true
	}
	place, word, found = c.room(keys.own, blocksOwn, e)
	return keys.own, place, word, found
}

func sameEnds(have, f *bpf.NearlbFlow) bool {
	return have.Client == f.Client && have.Frontend == f.Frontend && have.KeyPort == f.KeyPort && have.FrontendPort == f.FrontendPort &&
		have.Protocol == f.Protocol && (have.Flags^f.Flags)&flowAlias == 0 && (f.Flags&flowAlias == 0 || have.TwinPort == f.TwinPort)
}

// taken finds another connection's second entry with the port that the backend sees: replies would be anybody's. One
// that these tables' programs made is theirs; one that was carried here is over, as its port was given to this one since.
func (c *Carrier) taken(hash uint64, f *bpf.NearlbFlow) (place uint32, have bpf.NearlbFlow, found bool) {
	if f.Flags&flowAlias == 0 {
		return 0, have, false
	}
	for _, place := range c.store.tagged(flowKeys{own: hash}) {
		have, ok := readFlow(c.store.flows, place)
		if ok && have.Flags == f.Flags && have.KeyPort == f.KeyPort && have.Protocol == f.Protocol && have.Backend == f.Backend &&
			have.Source == f.Source && (f.Flags&flowSNAT != 0 || have.Client == f.Client) {
			return place, have, true
		}
	}
	return 0, have, false
}

func sameFlow(a, b *bpf.NearlbFlow) bool {
	return a.Backend == b.Backend && a.Generation == b.Generation && a.TwinPort == b.TwinPort && a.Flags == b.Flags && a.Source == b.Source
}

// later tells whether the other layout's entry is the newer one: it had a packet later, or nobody but us has written this one.
func (c *Carrier) later(place uint32, have, f *bpf.NearlbFlow) bool {
	if f.Touched != have.Touched {
		return int32(f.Touched-have.Touched) > 0
	}
	return c.wrote[place].word == have.Word
}

// merge brings an entry up to date with what the connection has shown since it was carried, and takes back what was another one's, from
// the same port. Of an entry that these tables' programs made, the other layout knows the end of the connection before at best. An entry
// that another took in the meantime gets it wrongly: a bit of another's state, which its own packets would have set soon.
func (c *Carrier) merge(place, word uint32, f *bpf.NearlbFlow) {
	seen, touched := flowWord(c.store.flows, place, wordSeen), flowWord(c.store.flows, place, wordTouched)
	add, gone := f.Seen&uint32(bpf.NearlbFlowSeenSEEN_REPLY|bpf.NearlbFlowSeenSEEN_ESTABLISHED), uint32(0)
	if last := c.wrote[place]; last.word == word {
		add, gone = f.Seen&^last.seen, last.seen&^f.Seen
		if f.Flags&flowCarried != 0 && (add|gone)&carriedNode != 0 {
			comesFrom(seen, f.Seen)
			add, gone = add&^carriedNode, gone&^carriedNode
		}
		c.wrote[place] = carriedFlow{word, f.Seen}
	}
	if atomic.LoadUint32(seen)&add != add {
		atomic.OrUint32(seen, add)
	}
	if atomic.LoadUint32(seen)&gone != 0 {
		atomic.AndUint32(seen, ^gone)
	}
	if last := atomic.LoadUint32(touched); int32(f.Touched-last) > 0 {
		atomic.CompareAndSwapUint32(touched, last, f.Touched)
	}
}

// comesFrom has an entry say that its connection comes from another node: of numbers, no bits are another's.
func comesFrom(seen *uint32, from uint32) {
	for {
		now := atomic.LoadUint32(seen)
		if atomic.CompareAndSwapUint32(seen, now, now&^carriedNode|from&carriedNode) {
			return
		}
	}
}

// room is an entry that the programs would take too: free, expired, closed, or else the one that waits for an answer longest.
func (c *Carrier) room(hash uint64, blocks int, e expiry) (place, word uint32, found bool) {
	best, oldest := 0, uint64(0)
	for at := range c.store.roomy(hash, blocks) {
		have := atomic.LoadUint32(flowWord(c.store.flows, at, wordOfFlow))
		f, used := readFlow(c.store.flows, at)
		rank := 0
		switch {
		case !used && have&flowPhase == 0:
			return at, have, true
		case !used || f.Word != have || have&flowPhase != flowLive:
		case e.expired(&f):
			rank = 3
		case closed(f.Seen) && !holdsPort(&f), mayBeClosed(&f):
			rank = 2
		case f.Seen&uint32(bpf.NearlbFlowSeenSEEN_REPLY) == 0:
			rank = 1
		}
		if rank > best || rank == best && rank > 0 && e.idle(&f) > oldest {
			place, word, found, best, oldest = at, have, true, rank, e.idle(&f)
		}
	}
	return place, word, found
}

// claim writes an entry as the programs do: shown to other writers first, and taken back if one of them has the same.
func (c *Carrier) claim(keys flowKeys, hash uint64, place, word uint32, f *bpf.NearlbFlow, begun uint32) bool {
	a := c.store.flows
	state := flowWord(a, place, wordOfFlow)
	claimed := word&^flowPhase + flowClaim
	if word&flowPhase == flowWriting || !atomic.CompareAndSwapUint32(state, word, claimed|flowWriting) {
		return false
	}
	c.store.countOut(place)
	for i, value := range wordsOf(f) {
		if i != wordOfFlow {
			atomic.StoreUint32(flowWord(a, place, i), value)
		}
	}
	atomic.StoreUint32(c.store.beginning(place), begun)
	c.store.setTag(place, flowTag(hash))
	if hash == keys.own {
		c.store.overflow(hash, place)
	}
	atomic.StoreUint32(state, claimed|flowClaimed)
	a.written()
	if c.twice(keys, place, f) {
		// The programs take a claimed entry that they find abandoned: it is freed, or published, only if it is ours yet.
		c.store.freeFlow(place, claimed|flowClaimed)
		return false
	}
	if !atomic.CompareAndSwapUint32(state, claimed|flowClaimed, claimed|flowLive) {
		return false
	}
	c.wrote[place] = carriedFlow{claimed | flowLive, f.Seen}
	return true
}

func (c *Carrier) twice(keys flowKeys, place uint32, f *bpf.NearlbFlow) bool {
	for _, at := range c.store.tagged(keys) {
		if have, ok := readFlow(c.store.flows, at); ok && at != place && sameEnds(&have, f) {
			return true
		}
	}
	return false
}
