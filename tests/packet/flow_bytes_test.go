// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// bytesOf are what was counted of a connection; each of its entries tells the same.
func (r *rig) bytesOf(c talk) (sent, received uint64) {
	r.Helper()
	entries := 0
	for row, err := range r.tables.Reader().CountedFlows() {
		check(r, err)
		if netip.AddrPortFrom(row.Client, row.ClientPort) != c.in.src || netip.AddrPortFrom(row.Frontend, row.FrontendPort) != c.in.dst {
			continue
		}
		if entries++; row.BytesSent == nil || row.BytesReceived == nil {
			r.Fatalf("nothing was counted: %+v", row)
		}
		if entries > 1 && (*row.BytesSent != sent || *row.BytesReceived != received) {
			r.Errorf("its entries tell %d and %d, %d and %d", sent, received, *row.BytesSent, *row.BytesReceived)
		}
		sent, received = *row.BytesSent, *row.BytesReceived
	}
	if entries == 0 {
		r.Fatalf("no flow from %s to %s", c.in.src, c.in.dst)
	}
	return sent, received
}

// counts has bytes be counted for so long.
func (r *rig) counts(long time.Duration) {
	r.Helper()
	_, err := r.tables.CountFlows(long)
	check(r, err)
}

// counting tells whether the programs are told to.
func (r *rig) counting() bool {
	r.Helper()
	var s bpf.NearlbSettings
	check(r, r.objects.Config.Lookup(uint32(0), &s))
	return s.Routed&uint8(bpf.NearlbRoutedROUTED_FLOWS_COUNTED) != 0
}

// rowsOfBytes is how many entries have a count.
func (r *rig) rowsOfBytes() (n int) {
	r.Helper()
	var at uint32
	var row bpf.NearlbFlowBytes
	all := r.objects.FlowBytes.Iterate()
	for all.Next(&at, &row) {
		n++
	}
	check(r, all.Err())
	return n
}

// Of a connection that began before, of one that began since, and of one whose source port is translated: its two entries count one
// direction each.
func TestBytesOfFlowsAreCountedFromWhenSomebodyAsks(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		before := r.open(w, 41000)
		before.goOn(r, "translate_established", "translate_reply")
		if n := r.rowsOfBytes(); n != 0 {
			t.Fatalf("%d flows were counted before anybody asked", n)
		}
		r.counts(time.Minute)
		since, twin := r.open(w, 41001), r.start(before.in.to(at(w.vip(11), 80)))
		if twin.out.src == twin.in.src {
			t.Fatal("no port was translated")
		}
		first, on, answer := uint64(r.length(since.in.bytes())), uint64(r.length(since.in.with("A", "go").bytes())), uint64(r.length(since.out.reply("PA", "yes").bytes()))
		for _, c := range []talk{before, since, twin} {
			for range 2 {
				c.goOn(r, "translate_established", "translate_reply")
			}
		}
		for _, row := range []struct {
			name     string
			of       talk
			sent     uint64
			received uint64
		}{{"began before", before, 2 * on, 2 * answer}, {"began since", since, first + 2*on, 2 * answer}, {"translated port", twin, first + 2*on, 2 * answer}} {
			if sent, received := r.bytesOf(row.of); sent != row.sent || received != row.received {
				t.Errorf("%s: %d and %d bytes, want %d and %d", row.name, sent, received, row.sent, row.received)
			}
		}
		_, err := r.tables.EndFlowCount(true)
		check(r, err)
		since.goOn(r, "translate_established", "translate_reply")
		if n := r.rowsOfBytes(); n != 0 || r.counting() {
			t.Errorf("nobody asks any more, and %d flows are counted", n)
		}
	}, lb.TCP, lb.UDP)
}

// The agent that began it may be gone: the first packet after the time ends it, and is not counted. What a client off the node showed
// before stays known.
func TestProgramsEndTheCountOfBytesByThemselves(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		c := r.open(w, 41000)
		r.edit(func(s *bpf.NearlbSettings) { s.Routed |= uint8(bpf.NearlbRoutedROUTED_HERE) })
		r.counts(-2 * time.Second) // the two clocks are alike to about a second
		c.goOn(r, "translate_established", "translate_reply")
		if n := r.rowsOfBytes(); n != 0 || r.counting() {
			t.Errorf("the time is over, and %d flows are counted", n)
		}
		var s bpf.NearlbSettings
		check(r, r.objects.Config.Lookup(uint32(0), &s))
		if s.Routed != uint8(bpf.NearlbRoutedROUTED_HERE) {
			t.Errorf("routed is %d", s.Routed)
		}
		r.edit(func(s *bpf.NearlbSettings) { s.Routed = 0 })
	}, lb.UDP)
}

// A place that another flow takes begins at zero, and another look removes the count of the one before.
func TestACountIsOfOneFlowAlone(t *testing.T) {
	forEachDoor(t, withSets(1), func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		r.counts(time.Minute)
		for range 3 {
			r.open(w, 41000).goOn(r, "translate_established", "translate_reply")
			r.counts(time.Minute)
			if n := r.rowsOfBytes(); n != 1 {
				t.Errorf("%d counts of one flow", n)
			}
			r.waited(48 * time.Hour) // it expires
			next := r.open(w, 41000)
			if sent, received := r.bytesOf(next); sent != uint64(r.length(next.in.bytes())) || received != 0 {
				t.Errorf("a new flow begins with %d and %d bytes, want %d", sent, received, uint64(r.length(next.in.bytes())))
			}
		}
	}, lb.UDP)
}

// A connection that begins while flows are read has its bytes, too: who floods is seen by these. Which ones are read after they began hangs on
// their places: others begin until some are.
func TestBytesOfAConnectionThatBeginsMeanwhileAreNotCalledNone(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		r.counts(time.Minute)
		r.open(w, 40000)
		for first, meanwhile := uint16(41000), 0; meanwhile == 0; first += 64 {
			if first > 50000 {
				t.Fatal("none of the connections that began meanwhile was read")
			}
			begun := false
			for row, err := range r.tables.Reader().CountedFlows() {
				check(r, err)
				for port := first; !begun && port < first+64; port++ {
					r.open(w, port)
				}
				begun = true
				if row.ClientPort >= first {
					meanwhile++
				}
				if row.BytesSent == nil || *row.BytesSent == 0 {
					t.Fatalf("a flow had a packet, and nothing was counted: %+v", row)
				}
			}
		}
	}, lb.UDP)
}

// A flow's age is the time since its entry was made, and not since its last packet.
func TestFlowsTellSinceWhenTheyAre(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		c := r.open(w, 41000)
		const back = 100 // seconds
		ages := func() (all []int64) {
			for row, err := range r.tables.Reader().Flows() {
				if check(r, err); row.AgeSeconds == nil {
					t.Fatalf("no age: %+v", row)
				}
				all = append(all, *row.AgeSeconds)
			}
			return all
		}
		if young := ages(); len(young) == 0 || slices.Max(young) >= back {
			t.Errorf("%v seconds old", young)
		}
		for i := range r.objects.FlowBegun.MaxEntries() {
			var set bpf.NearlbFlowBegun
			check(r, r.objects.FlowBegun.Lookup(i, &set))
			for way := range set.Ways {
				if set.Ways[way] != 0 {
					set.Ways[way] -= back * bpf.JiffiesPerSecond() >> 6
				}
			}
			check(r, r.objects.FlowBegun.Put(i, &set))
		}
		c.goOn(r, "translate_established", "translate_reply")
		if old := ages(); slices.Min(old) < back-1 {
			t.Errorf("%v seconds old, want %d", old, back)
		}
		r.waited(48 * time.Hour)
		r.open(w, 41000) // the flow is made again
		if young := ages(); slices.Min(young) >= back {
			t.Errorf("%v seconds old, and new", young)
		}
	}, lb.TCP, lb.UDP)
}
