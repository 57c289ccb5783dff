// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// FlowsCounted is for how many entries bytes are counted at once. A connection whose source port is translated has two.
const FlowsCounted = flowsCounted

// flowsCounted is FLOWS_COUNTED of bpf/lib/types.h.
const flowsCounted = 65536

// begunShift is FLOW_BEGUN_SHIFT of bpf/lib/types.h.
const begunShift = 6

const (
	wordCountedUntil = int(unsafe.Offsetof(bpf.NearlbFlowSpill{}.CountedUntil) / 4)
	longestCount     = 10 * time.Minute // programs compare 32 bits of a clock
)

// beginning is when the entry of a place was made.
func (s *store) beginning(place uint32) *uint32 {
	return s.begun.word(place/uint32(flowWays), int(place%uint32(flowWays)))
}

// since is how long ago the entry was made that had this word, in seconds; nil: not known.
func (s *store) since(place, word uint32, now uint64) *int64 {
	begun := atomic.LoadUint32(s.beginning(place))
	if begun == 0 || atomic.LoadUint32(flowWord(s.flows, place, wordOfFlow)) != word {
		return nil
	}
	ticks := max(0, int64(int32(uint32(now>>begunShift)-begun)))
	seconds := ticks << begunShift / int64(s.clock.perSecond())
	return &seconds
}

// FlowCount is what CountFlows found.
type FlowCount struct {
	Already    bool // the programs counted already
	Used, Room int  // entries in the table of counts, before those of flows that have ended were removed, and how many it takes
}

// Full tells whether flows may have had no place.
func (c FlowCount) Full() bool { return c.Used >= c.Room }

// CountFlows has the programs count the bytes of each flow until so long from now, ten minutes at most. Where they did not do so already,
// counts begin at zero. Packets take the slow path meanwhile.
func (t *Tables) CountFlows(long time.Duration) (FlowCount, error) {
	t.counting.Lock()
	defer t.counting.Unlock()
	if t.closed {
		return FlowCount{}, errors.New("count bytes of flows: these tables are being replaced: ask again")
	}
	return t.store.countFlows(min(long, longestCount))
}

func (s *store) countFlows(long time.Duration) (c FlowCount, err error) {
	c.Already, c.Room = s.countsFlows(), int(s.flowBytes.room())
	if c.Used, err = s.dropCounts(c.Already); err != nil {
		return c, err
	}
	until := s.clock.jiffies() + uint32(int64(long.Seconds()*float64(s.clock.perSecond())))
	atomic.StoreUint32(s.spills.word(0, wordCountedUntil), until)
	writeModes(s.settings, func(m *modes) { m.routed |= routedCounted })
	return c, nil
}

func (s *store) countsFlows() bool {
	return read[bpf.NearlbSettings](s.settings, 0).Routed&routedCounted != 0
}

// EndFlowCount ends what CountFlows began, at once if now is set and else if its time is over, and tells whether it has ended. The memory
// of the counts is free then.
func (t *Tables) EndFlowCount(now bool) (ended bool, err error) {
	t.counting.Lock()
	defer t.counting.Unlock()
	if t.closed {
		return true, nil
	}
	s := t.store
	left := int32(atomic.LoadUint32(s.spills.word(0, wordCountedUntil)) - s.clock.jiffies())
	if !now && s.countsFlows() && left > 0 {
		return false, nil
	}
	return true, s.endFlowCount()
}

func (s *store) endFlowCount() error {
	writeModes(s.settings, func(m *modes) { m.routed &^= routedCounted })
	_, err := s.dropCounts(false)
	return err
}

// dropCounts removes the counts of entries that are other flows' by now, or all, and tells how many there were.
func (s *store) dropCounts(keep bool) (used int, err error) {
	table := s.flowBytes.again()
	var gone []uint32
	for place, row := range table.all() {
		used++
		if !keep || !s.isOf(place, row.Word) {
			gone = append(gone, place)
		}
	}
	err = table.err()
	for _, place := range gone {
		err = errors.Join(err, table.remove(place))
	}
	if err != nil {
		return used, fmt.Errorf("remove from table flow_bytes: %w", err)
	}
	return used, nil
}

// isOf tells whether the entry of a place still has this word, by which it is one flow's.
func (s *store) isOf(place, word uint32) bool {
	return place/uint32(flowWays) < s.flows.size && word&flowPhase == flowLive && atomic.LoadUint32(flowWord(s.flows, place, wordOfFlow)) == word
}

// CountedFlows are Flows with what was counted of each since CountFlows began. Both entries of a connection have the sum of both: the client's
// packets find one, the server's the other.
func (r *Reader) CountedFlows() iter.Seq2[FlowRow, error] {
	return func(yield func(FlowRow, error) bool) {
		counted, err := r.store.counts()
		if err != nil {
			yield(FlowRow{}, err)
			return
		}
		r.flows(counted)(yield)
	}
}

// flowEnds are those of a connection, whichever entry has it.
type flowEnds struct {
	client, frontend         bpf.NearlbAddress
	clientPort, frontendPort uint16
	protocol                 uint8
}

func endsOf(f *bpf.NearlbFlow) flowEnds {
	port := f.KeyPort
	if f.Flags&flowAlias != 0 {
		port = f.TwinPort
	}
	return flowEnds{f.Client, f.Frontend, port, f.FrontendPort, f.Protocol}
}

// byteCounts are the bytes of connections.
type byteCounts map[flowEnds]struct{ sent, received uint64 }

func (s *store) counts() (byteCounts, error) {
	counted, table := byteCounts{}, s.flowBytes.again()
	for place, row := range table.all() {
		if !s.isOf(place, row.Word) {
			continue
		}
		f, ok := readFlow(s.flows, place)
		if !ok || f.Word != row.Word {
			continue
		}
		sum := counted[endsOf(&f)]
		sum.sent, sum.received = sum.sent+row.Sent, sum.received+row.Received
		counted[endsOf(&f)] = sum
	}
	if err := table.err(); err != nil {
		return nil, fmt.Errorf("read table flow_bytes: %w", err)
	}
	return counted, nil
}

// countsRead bounds how long ago counts were read when they are written into rows: a table of millions takes seconds.
const countsRead = 60 // seconds

// fill writes what was counted of a row's connection. One that began after the counts were read is looked up. Where there is room for more,
// one without a count had no packet.
func (s *store) fill(counted byteCounts, row *FlowRow, place uint32, f *bpf.NearlbFlow) {
	if counted == nil {
		return
	}
	bytes, known := counted[endsOf(f)]
	if !known && row.AgeSeconds != nil && *row.AgeSeconds < countsRead {
		own, found, err := s.flowBytes.get(place)
		if found && err == nil && own.Word == f.Word {
			bytes.sent, bytes.received, known = own.Sent, own.Received, true
		}
	}
	if known || len(counted) < flowsCounted/2 {
		row.BytesSent, row.BytesReceived = &bytes.sent, &bytes.received
	}
}
