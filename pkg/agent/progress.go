// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// staleAfter is how long a change may wait before the agent counts as hanging: twice kube-proxy's sync period.
const staleAfter = 60 * time.Second

// progress is how far the work with one set of tables is. The loop owns it and alone changes it; everybody may ask.
type progress struct {
	diary   *diary // the daemon's
	started time.Time
	listed  chan struct{} // closed: everything was listed once
	first   chan struct{} // closed: everything listed at first was published, or failed once

	mu       sync.Mutex
	begun    bool                        // initial is filled in
	initial  map[lb.ServiceName]struct{} // of the first list, not tried yet
	dirty    map[lb.ServiceName]mark
	services map[lb.ServiceName]service // published
	tally    *tally                     // of services
	failing  map[lb.ServiceName]FailingService
	moved    time.Time // when something was last begun or done

	allowance allowance
	whole     bool // decisions are kept, for the log
}

// mark says that a Service waits to be published.
type mark struct {
	version int       // grows with every change
	waits   time.Time // since when nothing was done about it
	bulk    bool      // it is looked at because every Service is, and did not change by itself
}

// service is what is kept of a published Service: there may be tens of thousands.
type service struct {
	pace    time.Duration // see allowance; since progress.started
	summary summary
	udp     []lb.BackendKey // that UDP clients may be connected to
	whole   *lb.Decision    // only where the log wants it
}

// outcome is what came of one publication.
type outcome struct {
	service  lb.ServiceName
	exists   bool
	held     bool // nothing was touched
	decision lb.Decision
	stats    tables.Stats
	input    lb.Input // of one that exists
	node     lb.Node  // likewise
}

func newProgress(j *diary, a allowance, whole bool) *progress {
	return &progress{
		diary: j, allowance: a, whole: whole,
		started:  time.Now(),
		listed:   make(chan struct{}),
		first:    make(chan struct{}),
		dirty:    map[lb.ServiceName]mark{},
		services: map[lb.ServiceName]service{},
		tally:    newTally(),
		failing:  map[lb.ServiceName]FailingService{},
	}
}

// startedListing notes that everything was listed once.
func (p *progress) startedListing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !closed(p.listed) {
		p.moved = time.Now()
		close(p.listed)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// done tells whether the first publication is complete.
func (p *progress) done() bool { return closed(p.first) }

// begin notes, the first time that it is called, which Services the first publication consists of. It is true if there are none, so
// that it is complete.
func (p *progress) begin(names []lb.ServiceName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun {
		return false
	}
	p.begun = true
	p.initial = map[lb.ServiceName]struct{}{}
	for _, name := range names {
		p.initial[name] = struct{}{}
	}
	return p.completeFirst()
}

// completeFirst closes first when nothing of it is left, and tells whether it did.
func (p *progress) completeFirst() bool {
	if len(p.initial) > 0 || !p.begun || p.done() {
		return false
	}
	close(p.first)
	if p.caughtUp() {
		p.diary.synced(time.Now())
	}
	p.diary.turn()
	return true
}

// isLast tells whether the first publication is complete with this Service.
func (p *progress) isLast(name lb.ServiceName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, waits := p.initial[name]
	return waits && len(p.initial) == 1
}

// caughtUp tells whether nothing waits to be published. What was listed at first is marked in pieces, so that for moments nothing of it is.
func (p *progress) caughtUp() bool { return len(p.dirty) == 0 && len(p.initial) == 0 }

// mark notes that a Service changed, or (bulk) that it is looked at because every Service is. It returns how long to wait for
// further changes.
func (p *progress) mark(name lb.ServiceName, bulk bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	m, waiting := p.dirty[name]
	if !waiting {
		m.waits, m.bulk = now, true
	}
	m.version++
	m.bulk = m.bulk && bulk
	p.dirty[name] = m
	return p.allowance.wait(p.services[name].pace, now.Sub(p.started))
}

// isBulk tells whether a Service waits only because every one is looked at.
func (p *progress) isBulk(name lb.ServiceName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dirty[name].bulk
}

// start tells whether a Service is marked, and which version of it is about to be published: finish wants that.
func (p *progress) start(name lb.ServiceName) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, marked := p.dirty[name]
	if marked {
		m.waits = time.Now()
		p.moved = m.waits
		p.dirty[name] = m
	}
	return m.version, marked
}

// result is what one publication meant for the whole.
type result struct {
	first     bool // it completed the first publication
	caughtUp  bool // nothing waits any more
	news      bool // the Service did not fail before, or otherwise
	recovered bool // the Service failed before
	leaves    bool // UDP clients may be left with a backend that serves no more
	old, new  *lb.Decision
}

// change is what clients notice of a publication. It is empty unless decisions are kept (progress.whole).
func (r result) change() lb.Change {
	var old, now lb.Decision
	if r.old != nil {
		old = *r.old
	}
	if r.new != nil {
		now = *r.new
	}
	return lb.Diff(old, now)
}

// finish notes what came of a publication. A Service that changed meanwhile, or failed, stays marked.
func (p *progress) finish(name lb.ServiceName, version int, o outcome, err error) result {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.diary.tell()
	now := time.Now()
	_, failed := p.failing[name]
	r := result{recovered: failed && err == nil}
	r.leaves = o.stats.Moved || !o.held && leavesClients(p.services[name].udp, servingUDP(&o.decision)) // even of one that failed: states are published
	p.moved = now
	delete(p.initial, name)
	if err != nil {
		r.news = p.noteFailure(name, err, now)
	} else {
		p.noteSuccess(name, version, now)
		p.keep(name, o, now, &r)
	}
	r.caughtUp = p.caughtUp()
	r.first = p.completeFirst()
	return r
}

// noteFailure tells whether the failure is another one than before.
func (p *progress) noteFailure(name lb.ServiceName, err error, now time.Time) bool {
	f, known := p.failing[name]
	if !known {
		f = FailingService{Service: name, Since: now}
	}
	news := f.Error != err.Error()
	f.Attempts++
	f.Error, f.Cause = err.Error(), cause(err)
	p.failing[name] = f
	return news
}

func (p *progress) noteSuccess(name lb.ServiceName, version int, now time.Time) {
	delete(p.failing, name)
	if m := p.dirty[name]; m.version == version {
		delete(p.dirty, name)
	} else {
		m.waits = now
		p.dirty[name] = m
	}
	if p.caughtUp() {
		p.diary.synced(now)
	}
}

// keep notes what is published of a Service now.
func (p *progress) keep(name lb.ServiceName, o outcome, now time.Time, r *result) {
	if o.held {
		return
	}
	before := p.services[name]
	r.old = before.whole
	if !o.exists {
		p.tally.replace(name, before.summary, nil)
		delete(p.services, name)
		return
	}
	after := service{pace: p.allowance.spend(before.pace, now.Sub(p.started)), udp: servingUDP(&o.decision)}
	after.summary = p.tally.replace(name, before.summary, &o.decision)
	if p.whole {
		decision := o.decision // alone: an outcome has all endpoints, too
		r.new, after.whole = &decision, &decision
	}
	p.services[name] = after
}

// short names at most so many of the Services that found a table full, others each time.
func (p *progress) short(limit int) (names []lb.ServiceName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, f := range p.failing { // in no order
		if f.Cause == tableFull && len(names) < limit {
			names = append(names, name)
		}
	}
	return names
}

// stale tells whether some change has waited for too long without a try. Until everything listed at first was published, which may
// take its time, the whole must go on: nothing was begun or done for as long. An agent that waits for the API server is not stale.
func (p *progress) stale(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done() {
		return closed(p.listed) && now.Sub(p.moved) > staleAfter
	}
	for _, m := range p.dirty {
		if now.Sub(m.waits) > staleAfter {
			return true
		}
	}
	return false
}

// describe fills in the status, the diary's part included.
func (p *progress) describe(s *Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Started = p.started
	s.State = Starting
	if p.done() {
		s.State = Serving
	}
	s.Services, s.Dirty = len(p.services), len(p.dirty)
	byName := func(a, b FailingService) int { return a.Service.Compare(b.Service) }
	s.Failing = append(s.Failing, slices.SortedFunc(maps.Values(p.failing), byName)...)
	for _, problems := range p.tally.problems {
		s.Problems = append(s.Problems, problems...)
	}
	p.diary.fill(s)
}

// count is what the metrics show of the loop's work.
func (p *progress) count() metrics.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := metrics.State{Services: len(p.services), Dirty: len(p.dirty), Failing: len(p.failing)}
	p.tally.fill(&s)
	return s
}
