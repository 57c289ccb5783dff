// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Event is a sampled packet that was dropped or rejected.
type Event struct {
	Booted      uint64 // when, in nanoseconds since the machine started (bpf.BootNanoseconds)
	Verdict     bpf.Verdict
	Hook        string
	Source      netip.AddrPort // port 0: none, or not known; the address may be unspecified
	Destination netip.AddrPort
	Protocol    uint8 // IANA
}

// EventReader takes events out of the programs' ring. A ring has one reader: what it has read is gone.
type EventReader struct{ ring *ringbuf.Reader }

// NewEventReader maps the ring into memory. The tables must stay open as long as it is used.
func NewEventReader(m *bpf.NearlbMaps) (*EventReader, error) {
	ring, err := ringbuf.NewReader(m.Events)
	if err != nil {
		return nil, fmt.Errorf("map table events: %w", err)
	}
	return &EventReader{ring}, nil
}

// Read waits for an event. Once End was called it gives what is left, and then ringbuf.ErrFlushed.
func (r *EventReader) Read() (Event, error) {
	for {
		record, err := r.ring.Read()
		if err != nil {
			return Event{}, fmt.Errorf("read table events: %w", err)
		}
		var e bpf.NearlbEvent
		if copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e)), record.RawSample) == int(unsafe.Sizeof(e)) {
			return eventOf(&e), nil
		}
	}
}

func eventOf(e *bpf.NearlbEvent) Event {
	hook := fmt.Sprint(e.Hook)
	if hooks := bpf.Hooks(); int(e.Hook) < len(hooks) {
		hook = hooks[e.Hook]
	}
	return Event{
		Booted: e.Time, Verdict: bpf.VerdictOf(e.Verdict), Hook: hook, Protocol: e.Protocol,
		Source:      netip.AddrPortFrom(addrOf(e.Source), swap16(e.SourcePort)),
		Destination: netip.AddrPortFrom(addrOf(e.Destination), swap16(e.DestinationPort)),
	}
}

// End has Read come to an end.
func (r *EventReader) End() error { return r.ring.Flush() }

// Close gives the memory back.
func (r *EventReader) Close() error { return r.ring.Close() }

// Refused counts the packets that were dropped or rejected, sampled or not.
func (r *Reader) Refused() (packets uint64, err error) {
	var indexes []uint32
	for hook := range bpf.Hooks() {
		for _, v := range bpf.Refusals() {
			indexes = append(indexes, uint32(hook*len(bpf.Verdicts()))+v.Number)
		}
	}
	for c, err := range r.store.verdicts.readEach(indexes) {
		if err != nil {
			return packets, fmt.Errorf("read table verdicts: %w", err)
		}
		packets += c.Packets
	}
	return packets, nil
}

// PortAt names the service port that is served at an address, a port and a protocol. Where the address alone is a Service's, whole is
// false and the name that of the Service.
func (t *Tables) PortAt(at netip.AddrPort, protocol uint8) (name lb.PortName, whole, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := keyOf(lb.FrontendKey{Address: at, Protocol: lb.Protocol(protocol)})
	if f := t.frontends[key]; f != nil && f.port != nil && !isAddressKey(key) {
		return f.port.name(), true, true
	}
	if f := t.frontends[addressKey(at.Addr())]; f != nil && f.port != nil {
		return lb.PortName{Service: f.port.service.name}, false, true
	}
	return lb.PortName{}, false, false
}
