// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"net/netip"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// grace is how long replaced records and slots stay as they are: far longer than a program that holds one may run.
const grace = time.Second

// Tables publishes decisions. It knows what the live tables hold, so that it writes only what changes. There is one writer
// to a set of tables; its methods may be called from several goroutines.
type Tables struct {
	mu    sync.Mutex
	store *store
	now   func() time.Time

	tableSize func(backends int) int // decide.TableSize

	services  map[lb.ServiceName]*service
	claims    *claims
	frontends map[frontendKey]*frontend // every entry of the table, strays too
	applying  lb.ServiceName            // whose decision is being published
	behind    map[lb.ServiceName]error  // heirs of a key, and why they could not take it over; tried again by Reclaim

	names      *registry
	recordIDs  *ids
	backendIDs *ids
	slots      *spans
	rangeCount int
	round      uint64 // numbers changes

	records []retiredRecord     // replaced, waiting for their grace
	runs    []*run              // likewise; those in use again are left alone
	gone    map[uint32]*backend // removed endpoints whose ids some connection may name
	strays  strays              // what no service port owns (restore)
	bits    map[filterBit]int   // addresses that need the bit
	sources *sources
	config  *Config                  // as told last; nil: not yet
	stale   map[filterBit]*staleMark // bits that are set and that nothing needs any more
	ends    Ends                     // nil: nobody adds up counters

	unsettled bool // ranges or names wait for their grace, as of the last Reclaim
}

type retiredRecord struct {
	id uint32
	at time.Time
}

// staleMark is when a bit or a source became stale, and when the flows were last searched for it.
type staleMark struct{ since, searched time.Time }

// service is one Kubernetes Service as published.
type service struct {
	name     lb.ServiceName
	decision *lb.Decision // the last one published; nil: restored, or removed
	ports    map[lb.PortName]*port
}

// port is one service port: the owner of ids.
type port struct {
	name      lb.PortName
	named     *named // its id is the service port's
	service   *service
	frontends map[frontendKey]*frontend
	backends  map[endpoint]*backend
	runs      map[string]*run        // by their backends' ids
	ranges    map[rangeKey]time.Time // zero: wanted; else when it was not any more
	idle      time.Time              // since when it has nothing; zero: not seen so
}

func newPort(name lb.PortName, owner *service, id *named) *port {
	return &port{name: name, named: id, service: owner, frontends: map[frontendKey]*frontend{}, backends: map[endpoint]*backend{},
		runs: map[string]*run{}, ranges: map[rangeKey]time.Time{}}
}

func (p *port) empty() bool {
	return len(p.frontends)+len(p.backends)+len(p.runs)+len(p.ranges) == 0
}

// frontend is an entry of the frontends table with the record in force.
type frontend struct {
	key    frontendKey
	port   *port // nil: a stray
	record uint32
	value  recordValue
	runs   []*run // one for each tier, both sides
}

// endpoint is a backend's address and port, as in the table.
type endpoint [18]byte

func endpointOf(a netip.AddrPort) (e endpoint) {
	bytes := a.Addr().As16()
	copy(e[:], bytes[:])
	e[16], e[17] = byte(a.Port()>>8), byte(a.Port())
	return e
}

// backend is one used id.
type backend struct {
	id         uint32
	port       *port // nil: a stray
	value      backendRow
	node, zone *named    // nil: unknown
	since      time.Time // when it went
	searched   time.Time // when the flows were last searched for it
	round      uint64    // the last change whose decision has it
}

func (b *backend) endpoint() endpoint { return endpointOf(AddrPortOf(b.value)) }

// run is a tier's Maglev table.
type run struct {
	span
	port     *port
	key      string
	ids      []uint32  // its backends, by address
	refs     int       // tiers of records in force, and changes that are to name it
	verified bool      // slots are known to be what they should be
	sum      uint64    // of the slots, once verified
	since    time.Time // when the last reference went
	waiting  bool      // for its grace: in Tables.runs
}

// retire gives a record up, and those of its runs that nothing else uses.
func (t *Tables) retire(f *frontend) {
	if f.record != 0 { // a stray may have none
		t.records = append(t.records, retiredRecord{f.record, t.now()})
	}
	for _, r := range f.runs {
		t.unref(r)
	}
}

// unref takes one reference from a run; without any it waits for its grace.
func (t *Tables) unref(r *run) {
	if r.refs--; r.refs == 0 {
		t.retireRun(r)
	}
}

func (t *Tables) retireRun(r *run) {
	r.since = t.now()
	if !r.waiting {
		r.waiting = true
		t.runs = append(t.runs, r)
	}
}

// need counts an address in; the bit is set at its first.
func (t *Tables) need(b filterBit) (wrote bool) {
	t.bits[b]++
	if t.bits[b] > 1 {
		return false
	}
	delete(t.stale, b)
	return b.put(t.store.filter, true)
}

// release counts an address out. The bit stays until no connection needs it (Reclaim).
func (t *Tables) release(b filterBit) {
	if t.bits[b]--; t.bits[b] <= 0 {
		delete(t.bits, b)
		t.stale[b] = &staleMark{since: t.now()}
	}
}
