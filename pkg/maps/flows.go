// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

const (
	flowWords    = int(unsafe.Sizeof(bpf.NearlbFlow{}) / 4)
	flowWays     = len(bpf.NearlbFlowSet{}.Ways)
	flowPhase    = uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK)
	flowLive     = uint32(bpf.NearlbFlowPhaseFLOW_LIVE)
	flowClaimed  = uint32(bpf.NearlbFlowPhaseFLOW_CLAIMED)
	flowAlias    = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	flowHairpin  = uint8(bpf.NearlbFlowFlagsFLOW_HAIRPIN)
	flowSNAT     = uint8(bpf.NearlbFlowFlagsFLOW_SNAT)
	flowDirect   = uint8(bpf.NearlbFlowFlagsFLOW_DIRECT)
	sideInternal = uint8(bpf.NearlbSideIndexSIDE_INTERNAL)
	readAttempts = 4

	carriedShift = uint32(bpf.NearlbTriedTRIED_SHIFT)
	carriedNode  = 0xffff << carriedShift // of seen
)

// carriedBy is the number of the node that a connection came from (FLOW_CARRIED): flow_carried_by of bpf/lib/flow.h.
func carriedBy(f *bpf.NearlbFlow) uint16 { return uint16(f.Seen >> carriedShift) }

func setCarriedBy(f *bpf.NearlbFlow, node uint16) {
	f.Seen = f.Seen&^carriedNode | uint32(node)<<carriedShift
}

// flowPlace is the number of an entry.
func flowPlace(set uint32, way int) uint32 { return set*uint32(flowWays) + uint32(way) }

// flowWord is a word of the entry of a place.
func flowWord(a *array, place uint32, word int) *uint32 {
	return a.word(place/uint32(flowWays), int(place%uint32(flowWays))*flowWords+word)
}

func yieldFlow(a *array, place uint32, yield func(uint32, bpf.NearlbFlow) bool) bool {
	f, ok := readFlow(a, place)
	return !ok || yield(place, f)
}

// liveFlows walks the flow table: every entry with a key, under its place. Of sets without one it reads the tags alone, an eighth of a cache
// line each instead of eight.
func liveFlows(s *store) iter.Seq2[uint32, bpf.NearlbFlow] {
	return func(yield func(uint32, bpf.NearlbFlow) bool) {
		for place := range s.walk(new(uint32), s.flows.size) {
			if !yieldFlow(s.flows, place, yield) {
				return
			}
		}
	}
}

// walk gives the places of the next sets of the flow table, so many at most, but of sets that have no entry, and leaves set at where to go on: the
// table's size at its end.
func (s *store) walk(set *uint32, sets uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for end := min(s.flows.size, *set+sets); *set < end; *set++ {
			if s.isEmptySet(*set) {
				continue
			}
			for way := range flowWays {
				if !yield(flowPlace(*set, way)) {
					return
				}
			}
		}
	}
}

// readFlow copies an entry that the programs may be changing: the word of state must be the same before and after. An entry
// that never stands still is given as it was read last.
func readFlow(a *array, place uint32) (f bpf.NearlbFlow, ok bool) {
	state := flowWord(a, place, wordOfFlow)
	for range readAttempts {
		word := atomic.LoadUint32(state)
		if phase := word & flowPhase; phase != flowLive && phase != flowClaimed {
			return f, false
		}
		f = copyFlow(a, place)
		if atomic.LoadUint32(state) == word {
			break
		}
	}
	return f, true
}

// copyFlow copies an entry word by word, whatever it is.
func copyFlow(a *array, place uint32) (f bpf.NearlbFlow) {
	for i, words := 0, wordsOf(&f); i < len(words); i++ {
		words[i] = atomic.LoadUint32(flowWord(a, place, i))
	}
	return f
}

// judgedWords are those of an entry that are read of all connections.
var judgedWords = [...]int{
	int(unsafe.Offsetof(bpf.NearlbFlow{}.Touched) / 4), int(unsafe.Offsetof(bpf.NearlbFlow{}.Seen) / 4), int(unsafe.Offsetof(bpf.NearlbFlow{}.Backend) / 4),
	int(unsafe.Offsetof(bpf.NearlbFlow{}.Protocol) / 4), int(unsafe.Offsetof(bpf.NearlbFlow{}.Service) / 4),
}

// readJudged reads those words of an entry that is live; none of one that is changing hands.
func readJudged(a *array, place uint32) (flow bpf.NearlbFlow, ok bool) {
	entry := a.words[int(place)*flowWords:][:flowWords]
	word := atomic.LoadUint32(&entry[wordOfFlow])
	if word&flowPhase != flowLive {
		return flow, false
	}
	words := wordsOf(&flow)
	words[wordOfFlow] = word
	for _, i := range judgedWords {
		words[i] = atomic.LoadUint32(&entry[i])
	}
	return flow, atomic.LoadUint32(&entry[wordOfFlow]) == word
}

// expiry judges entries' age as the programs do.
type expiry struct {
	now, perSecond uint32
	limits         bpf.Timeouts
}

func newExpiry(c clock) expiry {
	return expiry{c.jiffies(), c.perSecond(), bpf.DefaultTimeouts()}
}

// idle is the number of ticks without a packet.
func (e expiry) idle(f *bpf.NearlbFlow) uint64 { return age(e.now, f.Touched, e.perSecond) }

// aheadSeconds is how far behind the programs' clock a time may be by which ages are judged: it is read once for a walk of a table, which takes
// seconds where processors have much to do.
const aheadSeconds = 60

// age is the ticks since then. What was then may have been later than now: that is no age.
func age(now, then, perSecond uint32) uint64 {
	if ticks := now - then; ticks <= -(aheadSeconds * perSecond) {
		return uint64(ticks)
	}
	return 0
}

// seconds is idle in seconds.
func (e expiry) seconds(f *bpf.NearlbFlow) int64 { return int64(e.idle(f) / uint64(e.perSecond)) }

// expired says whether an entry is free to be overwritten.
func (e expiry) expired(f *bpf.NearlbFlow) bool {
	return e.idle(f) > uint64(e.limit(f))*uint64(e.perSecond)
}

// surely is expired with a margin for clocks that differ.
func (e expiry) surely(f *bpf.NearlbFlow) bool {
	const margin = 5
	return e.idle(f) > uint64(e.limit(f)+margin)*uint64(e.perSecond)
}

// limit is flow_timeout of bpf/lib/flow.h, in seconds.
func (e expiry) limit(f *bpf.NearlbFlow) uint32 {
	const established = uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)
	switch {
	case f.Protocol == uint8(lb.UDP) && f.Seen&established != 0:
		return e.limits.UDPAnswered
	case f.Protocol == uint8(lb.UDP):
		return e.limits.UDPUnanswered
	case holdsPort(f):
		return e.limits.TCPHeld
	case closed(f.Seen):
		return e.limits.TCPClosed
	case mayBeClosed(f):
		return e.limits.UDPAnswered
	case f.Seen&established != 0:
		return e.limits.TCPEstablished
	}
	return e.limits.TCPUnanswered
}

// mayBeClosed is flow_may_be_closed of bpf/lib/flow.h: the client has closed, and the server answers past this node.
func mayBeClosed(f *bpf.NearlbFlow) bool {
	const direct = uint8(bpf.NearlbFlowFlagsFLOW_CARRY | bpf.NearlbFlowFlagsFLOW_DSR)
	return f.Flags&direct == direct && f.Seen&uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN) != 0
}

func closed(seen uint32) bool {
	return seen&uint32(bpf.NearlbFlowSeenSEEN_RESET) != 0 || closedByBoth(seen)
}

// closedByBoth is seen_fins of bpf/lib/flow.h.
func closedByBoth(seen uint32) bool {
	const both = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN)
	return seen&both == both
}

// holdsPort is flow_holds_port of bpf/lib/flow.h: the connection has ended, and its server remembers the port of SNAT.
func holdsPort(f *bpf.NearlbFlow) bool {
	const ended = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN | bpf.NearlbFlowSeenSEEN_SERVER_WAITS)
	return f.Flags&(flowSNAT|flowAlias) == flowSNAT|flowAlias && f.Seen&ended == ended
}
