// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// A frame that opens a connection is run through the program at XDP first, as any; where that makes the flow, the tables are put back to what they
// were, and from_net has to make the same of the frame, and the same flow.

// opening is what the tables had before such a frame.
type opening struct {
	memory map[*ebpf.Map][]byte // flows and their tags, and the evidence about backends
	turns  []uint32
}

// memories are the tables that XDP writes as it opens a connection, and that are mapped into memory.
func (r *rig) memories() []*ebpf.Map {
	return []*ebpf.Map{r.objects.Flows, r.objects.FlowTags, r.objects.FlowOverflows, r.objects.FlowSpills, r.objects.BackendHealth}
}

// opens tells whether a frame may open a connection: a SYN, or a datagram but those of the tunnel.
func opens(frame []byte) bool {
	if len(frame) < 14+20 {
		return false
	}
	l4, protocol := 14+40, frame[14+6]
	if frame[14]>>4 == 4 {
		l4, protocol = 14+int(frame[14]&15)*4, frame[14+9]
	}
	switch protocol {
	case 6:
		return len(frame) >= l4+20 && frame[l4+13]&(2|16) == 2
	case 17:
		return len(frame) >= l4+8 && binary.BigEndian.Uint16(frame[l4+2:]) != tunnelPort
	default:
		return false
	}
}

// setsCopied is the largest flow table that is copied for each such frame: with a larger one, XDP gets none of them.
const setsCopied = 256

// firstAtXDP runs a frame of from_net through the program at XDP (throughXDP), and takes back what that did to open a connection.
func (r *rig) firstAtXDP(hook string, frame []byte) (*outcome, *made) {
	r.Helper()
	if r.noXDP || !r.sends || r.door != networkDoor || r.hook(hook) != fromNet || !opens(frame) {
		return r.throughXDP(hook, frame), nil
	}
	if r.objects.Flows.MaxEntries() > setsCopied {
		return nil, nil
	}
	state := r.state()
	var got *outcome
	for range 2 { // the first time may be the neighbour's, which is TC's
		if got = r.throughXDP(hook, frame); got == nil || got.action != xdpPass {
			break
		}
		state.compare(r, frame)
	}
	if !got.isOpening() {
		return got, nil
	}
	return got, state.undo(r, got, frame)
}

// state remembers the tables for a frame that may open a connection.
func (r *rig) state() *opening {
	r.Helper()
	o := &opening{memory: map[*ebpf.Map][]byte{}, turns: r.turns()}
	for _, m := range r.memories() {
		o.memory[m] = copyOf(r, m)
	}
	return o
}

func copyOf(r *rig, table *ebpf.Map) []byte {
	r.Helper()
	memory, err := table.Memory()
	check(r, err)
	all := make([]byte, int(table.MaxEntries())*int(table.ValueSize()))
	_, err = memory.ReadAt(all, 0)
	check(r, err)
	return all
}

// putBack gives the tables what they had.
func (o *opening) putBack(r *rig) {
	r.Helper()
	for m, all := range o.memory {
		memory, err := m.Memory()
		check(r, err)
		_, err = memory.WriteAt(all, 0)
		check(r, err)
	}
	now := r.turns()
	for i, turn := range o.turns {
		if now[i] != turn {
			check(r, r.objects.Turns.Put(uint32(i), turn))
		}
	}
}

// compare wants what passes to have changed no flow, turn or evidence: from_net decides as if the program at XDP were not there.
func (o *opening) compare(r *rig, frame []byte) {
	r.Helper()
	before, now := o.memory[r.objects.Flows], copyOf(r, r.objects.Flows)
	if !bytes.Equal(before, now) && !cmp.Equal(live(setsOf(before)), live(setsOf(now))) {
		r.Errorf("xdp: a frame that passes changed flows\n%s\n%s", show(frame), cmp.Diff(live(setsOf(before)), live(setsOf(now))))
	}
	if health := r.objects.BackendHealth; !bytes.Equal(o.memory[health], copyOf(r, health)) {
		r.Errorf("xdp: a frame that passes changed evidence about backends\n%s", show(frame))
	}
	if !slices.Equal(o.turns, r.turns()) {
		r.Errorf("xdp: a frame that passes took a turn\n%s", show(frame))
	}
}

// turns is how many each service port has taken: as many as there are ids. To read the others, whose turns nobody has, would take several
// times as long as to run a packet.
func (r *rig) turns() []uint32 {
	r.Helper()
	turns := make([]uint32, min(r.objects.Turns.MaxEntries(), r.objects.ServiceCounters.MaxEntries()))
	_, err := lookupRows(r.objects.Turns, 0, len(turns), turns)
	check(r, err)
	return turns
}

// setsOf reads a copy of the flow table.
func setsOf(raw []byte) []bpf.NearlbFlowSet {
	return unsafe.Slice((*bpf.NearlbFlowSet)(unsafe.Pointer(&raw[0])), len(raw)/int(unsafe.Sizeof(bpf.NearlbFlowSet{})))
}

// live are the flows in it, without the time of their last packet.
func live(sets []bpf.NearlbFlowSet) (flows []bpf.NearlbFlow) {
	for _, set := range sets {
		for _, f := range set.Ways {
			if phaseOf(f) == bpf.NearlbFlowPhaseFLOW_LIVE {
				f.Touched = 0
				flows = append(flows, f)
			}
		}
	}
	return flows
}

// made is what XDP made of a connection, beside the frame.
type made struct {
	flows    []bpf.NearlbFlow // but for times
	counters func()           // has the counters be what they are now
}

// undo takes back what XDP did, and tells it.
func (o *opening) undo(r *rig, got *outcome, frame []byte) *made {
	r.Helper()
	m := &made{flows: live(setsOf(copyOf(r, r.objects.Flows)))}
	opened := r.newEntries(o)
	if len(opened) == 0 {
		r.Fatalf("xdp: %s, and no flow\n%s", got.verdict, show(frame))
	}
	flow := opened[0]
	*r.made++
	m.counters = r.keepCounters(flow)
	o.putBack(r)
	if got.verdict != "translate_affinity" {
		key := bpf.NearlbAffinityKey{Client: flow.Client, Service: flow.Service}
		_ = r.objects.Affinity.Delete(&key) // there is none, mostly
	}
	return m
}

// newEntries are the entries that came since.
func (r *rig) newEntries(since *opening) (flows []bpf.NearlbFlow) {
	r.Helper()
	before := setsOf(since.memory[r.objects.Flows])
	for i, set := range contents[bpf.NearlbFlowSet](r, r.objects.Flows) {
		for way, f := range set.Ways {
			if f.Word != before[i].Ways[way].Word && phaseOf(f) == bpf.NearlbFlowPhaseFLOW_LIVE {
				flows = append(flows, f)
			}
		}
	}
	return flows
}

// keepCounters has the counters that a flow's first packet adds to be what they are now.
func (r *rig) keepCounters(f bpf.NearlbFlow) (put func()) {
	r.Helper()
	var service []bpf.NearlbServiceCounter
	var backend []bpf.NearlbBackendCounter
	awaited := make([]byte, r.objects.AwaitedBackends.ValueSize())
	slot := f.Backend % r.objects.AwaitedBackends.MaxEntries()
	check(r, r.objects.ServiceCounters.Lookup(f.Service, &service))
	check(r, r.objects.BackendCounters.Lookup(f.Backend, &backend))
	check(r, r.objects.AwaitedBackends.Lookup(slot, &awaited))
	return func() {
		r.Helper()
		check(r, r.objects.ServiceCounters.Put(f.Service, service))
		check(r, r.objects.BackendCounters.Put(f.Backend, backend))
		check(r, r.objects.AwaitedBackends.Put(slot, awaited))
	}
}

// isOpening tells whether XDP made a flow for a frame.
func (o *outcome) isOpening() bool {
	return o != nil && o.action != xdpPass && o.action != xdpDrop && !slices.Contains([]string{"translate_established", "translate_reply"}, o.verdict)
}

// compareMade wants of from_net the flow that XDP made.
func (r *rig) compareMade(m *made, in []byte) {
	r.Helper()
	if m == nil {
		return
	}
	if diff := cmp.Diff(live(setsOf(copyOf(r, r.objects.Flows))), m.flows); diff != "" {
		r.Errorf("the flow of a frame (-from_net +xdp)\n%s\n%s", show(in), diff)
	}
	m.counters()
}
