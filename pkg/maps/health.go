// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

type healthRow = bpf.NearlbBackendHealth

// Suspect is a backend whose connections were not answered, as the programs tell.
type Suspect struct {
	ID         uint32
	Generation uint16 // of the id
}

// Evidence is what is known of whether a backend answers, and of whether new connections leave it out. Times are nanoseconds since the
// machine started (bpf.BootNanoseconds).
type Evidence struct {
	Suspect
	Port       lb.PortName
	Address    netip.AddrPort
	Node       string      // its node's name, "": not known
	Mode       lb.Ejection // of its Service
	Unanswered int         // connections in a row whose SYN was not answered
	Clients    int         // of these: 1, or 2 for several
	Since      uint64      // when it was left out last; 0: never
	Until      uint64      // it is left out until then, and then until a connection that tries it is answered; 0: it is not left out
	Times      int         // how often, one time after the other; 0 while it is left out: because of its node
	Answered   uint32      // moves when it answers a new connection
}

// AnsweredSince says whether the backend has answered a connection, or was taken back, since before.
func (e Evidence) AnsweredSince(before Evidence) bool {
	return e.Answered != before.Answered || e.Until == 0 && (before.Until != 0 || e.Unanswered < before.Unanswered)
}

// ByNode says whether the backend is left out because its node is silent, and not yet for what it did itself.
func (e Evidence) ByNode() bool { return e.Until != 0 && e.Times == 0 }

// Because says why the backend is left out.
func (e Evidence) Because() string {
	if e.ByNode() {
		return "its node answers this one no more"
	}
	return e.Text()
}

// Text says what the evidence is: "no answer to 3 connections of several clients, nor to this node".
func (e Evidence) Text() string {
	if e.Unanswered == 0 {
		return "no answer to the connection that tried it, nor to this node"
	}
	clients := "one client"
	if e.Clients > 1 {
		clients = "several clients"
	}
	return fmt.Sprintf("no answer to %d connections of %s, nor to this node", e.Unanswered, clients)
}

// Readmission is a backend that was left out and is so no more.
type Readmission struct {
	Evidence
	Because  string
	Answered bool // a connection
}

// leftOut is a backend that new connections leave out.
type leftOut struct {
	port       *port
	generation uint16
	address    netip.AddrPort
}

// The words of a row that the agent writes, as laid out in bpf/lib/types.h.
const (
	wordUntil      = int(unsafe.Offsetof(healthRow{}.Until) / 4)
	wordSince      = int(unsafe.Offsetof(healthRow{}.Since) / 4)
	wordAnswered   = int(unsafe.Offsetof(healthRow{}.Answered) / 4)   // written by programs alone, but for a fresh id
	wordUnanswered = int(unsafe.Offsetof(healthRow{}.Unanswered) / 4) // unanswered, generation
	wordTimes      = int(unsafe.Offsetof(healthRow{}.Times) / 4)
)

// setUntil is one write, as programs compare and exchange the field.
func (s *store) setUntil(id uint32, until uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(s.health.word(id, wordUntil))), until)
	s.health.written()
}

// until reads the field whole.
func (s *store) until(id uint32) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(s.health.word(id, wordUntil))))
}

// restoreHealth finds the backends that are left out.
func (t *Tables) restoreHealth(ports map[uint32]*port) {
	for id := range min(t.backendIDs.next, t.store.health.size) {
		if t.store.until(id) == 0 {
			continue
		}
		b, h := read[backendRow](t.store.backends, id), read[healthRow](t.store.health, id)
		if p := ports[b.Service]; p != nil && h.Generation == b.Generation {
			t.out[id] = &leftOut{p, b.Generation, AddrPortOf(b)}
		} else {
			t.store.setUntil(id, 0)
		}
	}
}

// Evidence reads what is known of a backend; false where the id is another endpoint's by now, or takes no connections.
func (t *Tables) Evidence(s Suspect) (Evidence, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, b := t.suspected(s)
	if p == nil {
		return Evidence{}, false
	}
	return t.evidence(s, p, AddrPortOf(b)), true
}

// suspected finds a backend that takes connections, and nil for any other.
func (t *Tables) suspected(s Suspect) (*port, backendRow) {
	if s.ID == 0 || !t.store.health.in(s.ID, 1) || !t.store.backends.in(s.ID, 1) {
		return nil, backendRow{}
	}
	b := read[backendRow](t.store.backends, s.ID)
	if b.Generation != s.Generation || b.State == uint8(bpf.NearlbBackendStateBACKEND_RESPONDER) || !takes(&b) {
		return nil, b
	}
	text, _, err := t.store.names.get(nameKey{Kind: servicePortName, Id: b.Service})
	if err != nil {
		return nil, b
	}
	name, err := parsePortName(text)
	if err != nil {
		return nil, b
	}
	service := t.services[name.Service]
	if service == nil {
		return nil, b
	}
	return service.port(name.Key()), b
}

func (t *Tables) evidence(s Suspect, p *port, at netip.AddrPort) Evidence {
	h := read[healthRow](t.store.health, s.ID)
	e := Evidence{Suspect: s, Port: p.name(), Address: at, Mode: p.service.ejection, Node: t.nodeName(read[backendRow](t.store.backends, s.ID).Node)}
	if h.Generation == s.Generation {
		e.Unanswered, e.Clients, e.Times = int(h.Unanswered), int(h.Clients), int(h.Times)
		e.Since, e.Until, e.Answered = h.Since, h.Until, h.Answered
	}
	return e
}

// Eject has new connections leave a backend out until then; times is as in Evidence. It refuses, and says why, where too few others would be left: never more than
// half of the usable backends of any tier in force are left out, so that the last one never is.
func (t *Tables) Eject(s Suspect, until uint64, times int) (refused string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, b := t.suspected(s)
	if p == nil {
		return "", fmt.Errorf("leave backend %d out: it takes no connections any more", s.ID)
	}
	t.beginHealth(s)
	listed := false
	for _, r := range p.runs {
		if r.refs == 0 || !slices.Contains(r.ids, s.ID) {
			continue
		}
		listed = true
		usable, out := t.tally(r, s.ID)
		if 2*(out+1) > usable {
			return fmt.Sprintf("%d of the %d backends of its tier are left out, and half of them have to stay", out, usable), nil
		}
	}
	if !listed {
		return "no tier has it", nil
	}
	since := t.store.clock.boot()
	for i, word := range wordsOf(&since) {
		t.store.health.store(s.ID, wordSince+i, word)
	}
	t.store.health.store(s.ID, wordTimes, uint32(times))
	t.out[s.ID] = &leftOut{p, s.Generation, AddrPortOf(b)}
	t.store.setUntil(s.ID, until)
	return "", nil
}

// beginHealth makes the row a backend's of which the programs know nothing yet. They do the same, with the first connection that it does not
// answer.
func (t *Tables) beginHealth(s Suspect) {
	if read[healthRow](t.store.health, s.ID).Generation == s.Generation {
		return
	}
	t.store.setUntil(s.ID, 0)
	t.store.health.store(s.ID, wordTimes, 0)
	h := healthRow{Generation: s.Generation}
	t.store.health.store(s.ID, wordUnanswered, wordsOf(&h)[wordUnanswered])
}

// Doubtful finds the other TCP backends of a backend's node that take connections and are not left out, where backends of several Services there
// are. This node is no such node: its connections to its own pods go over no network.
func (t *Tables) Doubtful(s Suspect) (node string, others []Evidence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, b := t.suspected(s)
	if p == nil || b.Node == 0 || b.Tier == tierOf(lb.TierNode) || !t.severalOut(b.Node) {
		return "", nil
	}
	for _, service := range t.services {
		for _, p := range service.ports {
			if p.key.Value().Protocol != lb.TCP {
				continue
			}
			for i := range p.backends {
				if o := &p.backends[i]; o.row.Node == b.Node && takes(&o.row) && !t.isOut(o.id) {
					others = append(others, t.evidence(Suspect{o.id, o.row.Generation}, p, AddrPortOf(o.row)))
				}
			}
		}
	}
	slices.SortFunc(others, func(a, b Evidence) int { return int(a.ID) - int(b.ID) })
	return t.nodeName(b.Node), others
}

// severalOut says whether backends of several Services and addresses of a node are left out: two Services of one pod are one pod's failure.
func (t *Tables) severalOut(node uint16) bool {
	services, addresses := map[lb.ServiceName]bool{}, map[netip.Addr]bool{}
	for id, o := range t.out {
		if row := read[backendRow](t.store.backends, id); t.isOut(id) && row.Node == node {
			services[o.port.service.name] = true
			addresses[AddrPortOf(row).Addr()] = true
		}
	}
	return len(services) > 1 && len(addresses) > 1
}

// tally counts the backends of a run that take connections, and those of them that are left out, without one of them.
func (t *Tables) tally(r *run, without uint32) (usableCount, out int) {
	for _, id := range r.ids {
		b := read[backendRow](t.store.backends, id)
		if !takes(&b) {
			continue
		}
		usableCount++
		if id != without && t.isOut(id) {
			out++
		}
	}
	return usableCount, out
}

// leftOutBy says whether this evidence has programs leave the backend out that has its id.
func leftOutBy(h *healthRow, b *backendRow) bool {
	return h.Until != 0 && h.Generation == b.Generation && takes(b)
}

// isOut says whether programs leave a backend out, or let single connections try it.
func (t *Tables) isOut(id uint32) bool {
	o := t.out[id]
	return o != nil && t.store.until(id) != 0 && read[healthRow](t.store.health, id).Generation == o.generation
}

// Readmit has new connections go to a backend again, and forgets the evidence against it; false: it was not left out.
func (t *Tables) Readmit(s Suspect) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, _ := t.suspected(s)
	if p == nil {
		return false
	}
	o := t.out[s.ID]
	t.readmit(s.ID)
	return o != nil && o.generation == s.Generation // also where a client's answer took it back a moment ago: nobody has told that yet
}

// ReadmitAt readmits all backends at an address and port that are left out, and says how many that were: none of tables that are closed.
func (t *Tables) ReadmitAt(at netip.AddrPort, because string) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0
	}
	for id, o := range t.out {
		if o.address == at && t.isOut(id) {
			t.readmitBecause(id, o, because)
			n++
		}
	}
	return n
}

func (t *Tables) readmit(id uint32) {
	t.store.setUntil(id, 0)
	word := t.store.health.load(id, wordUnanswered)
	h := healthRow{}
	wordsOf(&h)[wordUnanswered] = word
	h.Unanswered = 0
	t.store.health.store(id, wordUnanswered, wordsOf(&h)[wordUnanswered])
	delete(t.out, id)
}

// settleHealth readmits backends that are no longer to be left out after a publication: those that are gone, and those whose tier has lost
// so many others that more than half of it would be out. It takes time with the backends of the tiers that have some left out.
func (t *Tables) settleHealth() {
	for id, o := range t.out {
		b := read[backendRow](t.store.backends, id)
		if b.Generation != o.generation || !takes(&b) {
			t.readmitBecause(id, o, "it takes no connections any more")
		}
	}
	crowded := map[*run]bool{}
	for id, o := range t.out {
		for _, r := range o.port.runs {
			if r.refs == 0 {
				continue
			}
			full, known := crowded[r]
			if !known {
				full = t.tooManyOut(r)
			}
			if full && slices.Contains(r.ids, id) {
				t.readmitBecause(id, o, "its tier has lost others")
				for _, r := range o.port.runs { // others of its tiers have one less
					delete(crowded, r)
				}
				break
			}
			crowded[r] = full
		}
	}
}

func (t *Tables) tooManyOut(r *run) bool {
	usable, out := t.tally(r, 0)
	return 2*out > usable
}

func (t *Tables) readmitBecause(id uint32, o *leftOut, because string) {
	e := t.evidence(Suspect{id, o.generation}, o.port, o.address)
	t.readmit(id)
	t.readmitted = append(t.readmitted, Readmission{Evidence: e, Because: because})
}

// Ejected lists the backends that are left out, by id.
func (t *Tables) Ejected() []Evidence {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	var all []Evidence
	for id, o := range t.out {
		if t.isOut(id) {
			all = append(all, t.evidence(Suspect{id, o.generation}, o.port, o.address))
		}
	}
	slices.SortFunc(all, func(a, b Evidence) int { return int(a.ID) - int(b.ID) })
	return all
}

// Readmitted hands out those that came back since the last call: those that answered somebody, as the programs saw, and those that a
// publication took back.
func (t *Tables) Readmitted() []Readmission {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, o := range t.out {
		if !t.isOut(id) {
			t.readmitBecause(id, o, "it answered a connection")
			t.readmitted[len(t.readmitted)-1].Answered = true
		}
	}
	all := t.readmitted
	t.readmitted = nil
	return all
}

// The times that a backend is left out for.
const (
	ejectFirst   = 10 * time.Second
	ejectLongest = 300 * time.Second
)

// EjectionTime is how long a backend is left out for the n-th time in a row: 10 seconds, then twice as long each time, up to 300.
func EjectionTime(n int) time.Duration {
	d := ejectFirst
	for ; n > 1 && d < ejectLongest; n-- {
		d *= 2
	}
	return min(d, ejectLongest)
}

// NextTime is the number of the next time in a row, from what is known of the last one: who has served for as long as the longest time since
// the last one should have ended begins anew.
func (e Evidence) NextTime(now uint64) int {
	if e.Times == 0 || now > e.Since+uint64(EjectionTime(e.Times)+ejectLongest) {
		return 1
	}
	return e.Times + 1
}

// SuspectReader takes backends that do not answer out of the programs' ring. A ring has one reader: what it has read is gone.
type SuspectReader struct{ ring *ringbuf.Reader }

// NewSuspectReader maps the ring into memory. The tables must stay open as long as it is used.
func NewSuspectReader(m *bpf.NearlbMaps) (*SuspectReader, error) {
	ring, err := ringbuf.NewReader(m.Suspects)
	if err != nil {
		return nil, fmt.Errorf("map table suspects: %w", err)
	}
	return &SuspectReader{ring}, nil
}

// Read waits for a backend. Once End was called it gives what is left, and then ringbuf.ErrFlushed.
func (r *SuspectReader) Read() (Suspect, error) {
	for {
		record, err := r.ring.Read()
		if err != nil {
			return Suspect{}, fmt.Errorf("read table suspects: %w", err)
		}
		var s bpf.NearlbSuspect
		if copy(unsafe.Slice((*byte)(unsafe.Pointer(&s)), unsafe.Sizeof(s)), record.RawSample) == int(unsafe.Sizeof(s)) {
			return Suspect{s.Backend, s.Generation}, nil
		}
	}
}

// End has Read come to an end.
func (r *SuspectReader) End() error { return r.ring.Flush() }

// Close gives the memory back.
func (r *SuspectReader) Close() error { return r.ring.Close() }
