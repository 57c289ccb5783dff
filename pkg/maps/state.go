// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/nearlb/nearlb/pkg/lb"
)

// grace is how long replaced records and slots stay as they are: far longer than a program that uses one may run.
const grace = time.Second

// Tables publishes decisions. It knows what is in the live tables, so that it writes only what changes. There is one writer
// to a set of tables; its methods may be called from several goroutines.
type Tables struct {
	mu    sync.Mutex
	store *store
	now   func() time.Time

	counting sync.Mutex // of bytes of flows, and closed; after mu
	beating  sync.Mutex // closed and the heartbeat in the settings; after counting
	closed   bool       // written under all three

	tableSize func(backends int) int               // decide.TableSize
	sharesOf  func(weights, due []uint32) []uint32 // decide.SharesOf

	services  map[lb.ServiceName]*service
	claims    *claims
	frontends map[frontendKey]*frontend // every entry of the table, strays too
	applying  *service                  // whose decision is being published
	behind    map[lb.ServiceName]error  // heirs of a key, and why they could not take it over; tried again by Reclaim
	again     map[lb.ServiceName]bool   // heirs and losers of a key whose decision is not kept: Stats.Again

	names      *registry
	recordIDs  *ids
	backendIDs *ids
	slots      *spans
	rangeCount int
	round      uint32 // numbers changes

	records    []retiredRecord         // replaced, waiting for their grace
	runs       []*run                  // likewise; those in use again are left alone
	gone       map[uint32]*goneBackend // removed endpoints whose ids some connection may name
	out        map[uint32]*leftOut     // backends that new connections leave out
	readmitted []Readmission           // that nobody was told of yet
	idle       map[*port]time.Time     // ports that may have nothing any more, and since when
	leaving    map[*port]bool          // ports with source ranges that wait for their grace
	unverified []*run                  // restored, and not compared with what they should be yet
	strays     strays                  // what no service port owns (restore)
	bits       *bitCounts              // addresses that need the bit
	sources    *sources
	searching  *search // of the tables of connections, while it goes on
	piece      searchPiece
	hosts      *hostSearch      // for connections of the host, while it goes on
	swept      uint32           // how much of the flow table the walk of Sweep has behind it, in sets
	tunneled   int              // of these, connections that go through the tunnel
	recounting *recount         // of the connections that count, while it goes on
	drifts     map[uint32]int32 // by backend: connections that the last recount found beyond those that are counted
	carried    map[uint32]int32 // by backend: connections that count and came through the tunnel, as the last recount found them
	loads      uint64           // another one when Loads may list others; never 0
	config     *Config          // as told last; nil: not yet

	tunnelNodes map[string]*named // that have a number for the tunnel's sake
	tunnelOn    bool              // local_backends follows what is published
	tunnelTold  bool              // tunnelOn is what was configured, and not what a restart begins with
	tunnels     tunnelBackends

	moved map[frontendKey]*staleMark // frontends of UDP that came to another service port

	stale  map[filterBit]*staleMark // bits that are set and that nothing needs any more
	ends   Ends                     // nil: nobody adds up counters
	noting bool                     // Stats say what changed for clients

	filler *filler // nil: programs may read the tables, and slots are filled before anything names them
	unused bool    // the same, and nothing was ever counted
}

type retiredRecord struct {
	id uint32
	at time.Time
}

// staleMark is when a bit or a source became stale, or a frontend moved, and when the flows were last searched for it.
type staleMark struct{ since, searched time.Time }

// service is one Kubernetes Service as published.
type service struct {
	name      lb.ServiceName
	applied   bool // its decision was published; false: restored, or removed
	ports     []*port
	keys      []frontendKey // that it claims, in order
	waits     int           // how many of these another Service has
	ejection  lb.Ejection   // of the decision published last
	keepLost  bool          // the same
	balancing lb.Balancing  // the same
	decision  *lb.Decision  // the last one published, kept as long as it waits for a key
}

// port finds a service port; nil when there is none.
func (s *service) port(key lb.PortKey) *port {
	for _, p := range s.ports {
		if p.key.Value() == key {
			return p
		}
	}
	return nil
}

// port is one service port: the owner of ids.
type port struct {
	service   *service
	key       unique.Handle[lb.PortKey]
	id        uint32 // as the tables have it
	frontends []*frontend
	backends  []backend // by address
	runs      []*run
	ranges    map[rangeKey]time.Time // zero: wanted; else when it was not any more
}

func (p *port) name() lb.PortName {
	key := p.key.Value()
	return lb.PortName{Service: p.service.name, Port: key.Name, Protocol: key.Protocol}
}

func (p *port) empty() bool {
	return len(p.frontends)+len(p.backends)+len(p.runs)+len(p.ranges) == 0
}

// run finds the run of so many slots of these backends, in the order of turns or of Maglev; nil when there is none.
func (p *port) run(ids, shares []uint32, count uint32, inTurn bool) *run {
	for _, r := range p.runs {
		if r.count == count && r.inTurn == inTurn && slices.Equal(r.ids, ids) && slices.Equal(r.shares, shares) {
			return r
		}
	}
	return nil
}

// without takes one element out of a list.
func without[T comparable](all []T, one T) []T {
	if at := slices.Index(all, one); at >= 0 {
		return slices.Delete(all, at, at+1)
	}
	return all
}

// frontend is an entry of the frontends table with the record in force.
type frontend struct {
	key    frontendKey
	port   *port // nil: a stray
	record uint32
	value  recordValue
	runs   []*run // one for each tier, both sides
}

// run is a tier's table, Maglev's or one of turns.
type run struct {
	span
	port     *port
	ids      []uint32  // its backends, by address
	shares   []uint32  // how many slots each has; nil: all the same, but for one
	inTurn   bool      // its slots are in the order of turns
	refs     int       // tiers of records in force, and changes that are to name it
	sum      uint64    // of the slots, once verified
	since    time.Time // when the last reference went
	verified bool      // slots are known to be what they should be
	unasked  bool      // restored, of unequal shares that no decision asked for yet: nobody knows what they should be
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

// need counts an address in; a bit is set at its first.
func (t *Tables) need(k known) (wrote bool) {
	for _, b := range k.bits() {
		if t.bits.need(b) {
			delete(t.stale, b)
			wrote = b.put(t.store.filter, true) || wrote
		}
	}
	return wrote
}

// restored counts an address in whose bits should be set.
func (t *Tables) restored(k known) {
	for _, b := range k.bits() {
		t.bits.need(b)
	}
}

// release counts an address out. A bit stays until no connection needs it (Reclaim).
func (t *Tables) release(k known) {
	for _, b := range k.bits() {
		if t.bits.release(b) {
			t.stale[b] = &staleMark{since: t.now()}
		}
	}
}

// knownFrontend is how the fast path knows a frontend's packets.
func (t *Tables) knownFrontend(f *frontend) known { return t.store.frontendKnown(f.key, &f.value) }

// lookAt has Reclaim look whether a port has nothing any more.
func (t *Tables) lookAt(p *port) {
	if _, known := t.idle[p]; !known && p.empty() {
		t.idle[p] = t.now()
	}
}
