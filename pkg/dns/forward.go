// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	wire "github.com/miekg/dns"
)

// Way says how a question was answered.
type Way string

// The ways, as `nearlb dns query` and the metrics spell them.
const (
	WayResponder Way = "responder" // from the view
	WayKernel    Way = "kernel"    // by the programs, from what the view wrote to their table
	WayForwarded Way = "forwarded" // by the upstream
	WayCached    Way = "cached"    // by the upstream, lately
	WayStale     Way = "stale"     // by the upstream, and too long ago: it does not answer now
)

// The timers of RFC 8767 5.
const (
	staleAfter   = 1800 * time.Millisecond // client response timer: a client gets what is old when the upstream has not answered by then
	recheckAfter = 30 * time.Second        // failure recheck timer: an upstream that did not answer is asked again
	longestStale = 24 * time.Hour          // maximum stale timer
	staleTTL     = 30                      // seconds
)

// Upstream asks somebody else.
type Upstream interface {
	// Exchange passes a client's question on, and returns the answer with the client's id.
	Exchange(ctx context.Context, query *wire.Msg) (*wire.Msg, error)
}

// Forwarder asks an upstream for clients, and keeps its answers as long as they may be. Equal questions that wait share one.
type Forwarder struct {
	upstream Upstream
	waiting  share // questions that wait for the upstream

	mu      sync.Mutex
	cache   *cache
	flights map[key]*flight
}

// maxWaiting is how many questions may wait for the upstream. Each has a goroutine, and one of equal ones a socket, for up to exchangeTime.
const maxWaiting = 1024

// NewForwarder is a forwarder that has kept nothing yet.
func NewForwarder(u Upstream) *Forwarder {
	return &Forwarder{upstream: u, waiting: share{most: maxWaiting}, cache: newCache(cacheBytes), flights: map[key]*flight{}}
}

// Kept says how many answers are kept, and the memory that they take, in bytes.
func (f *Forwarder) Kept() (answers, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.cache.entries), f.cache.bytes
}

// flight is a question that is under way.
type flight struct {
	done  chan struct{} // closed when the rest is written
	reply *wire.Msg
	err   error
}

// errTooMany says that a client has its share of the questions that may wait.
var errTooMany = errors.New("ask upstream: too many questions wait for it")

// Exchange answers a client's question with what is kept, or asks. Where stale, an answer that is too old is told as well, in the order
// of RFC 8767 5: when the upstream was found silent less than recheckAfter ago, fails now, or has not answered after staleAfter.
func (f *Forwarder) Exchange(ctx context.Context, query *wire.Msg, client netip.Addr, stale bool) (*wire.Msg, Way, error) {
	k, now := keyOf(query), time.Now()
	f.mu.Lock()
	old := f.cache.get(k, now)
	if old != nil && old.fresh(now) {
		if old.due(now) && f.flights[k] == nil {
			_ = f.join(ctx, k, client) // nobody waits. Without a place it is asked for when it has expired
		}
		f.mu.Unlock()
		return old.answer(query, now)
	}
	switch {
	case old == nil || old.failed:
		old = nil
	case !stale:
		f.cache.remove(old) // of no use any more, and a failure is not kept in the place of an answer
		old = nil
	}
	if old != nil && now.Before(old.recheck) {
		f.mu.Unlock()
		return old.answer(query, now)
	}
	seat := f.join(ctx, k, client)
	f.mu.Unlock()
	reply, err := seat.wait(ctx, old != nil)
	if old != nil && (err != nil || !known(reply)) {
		return old.answer(query, now)
	}
	if err != nil {
		return nil, WayForwarded, err
	}
	return answerTo(query, reply), WayForwarded, nil
}

// due tells that an answer is to be asked for before it expires: it was asked for again, and has a tenth of its life left.
func (k *kept) due(now time.Time) bool {
	return k.asked >= popular && !k.failed && now.Sub(k.received) >= k.life-k.life/10 && !now.Before(k.recheck)
}

// popular is how often an answer must have been asked for since it came, for it to be renewed before it expires.
const popular = 3

// seat is a client's part in a flight.
type seat struct {
	*flight        // nil: there is no place for this client
	leave   func() // nil: the flight gives the place back
}

// join takes a place for a client, and begins the flight where there is none. The forwarder is locked by the caller.
func (f *Forwarder) join(ctx context.Context, k key, client netip.Addr) seat {
	if !f.waiting.take(client) {
		return seat{}
	}
	give := func() { f.waiting.give(client) }
	if under := f.flights[k]; under != nil {
		return seat{under, give}
	}
	begun := &flight{done: make(chan struct{})}
	f.flights[k] = begun
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTime) // others wait, too, and the answer is kept
	go func() {
		defer cancel()
		defer give()
		f.fly(ctx, k, begun)
	}()
	return seat{flight: begun}
}

// wait returns what the upstream said. With something old at hand it waits no longer than for staleAfter.
func (s seat) wait(ctx context.Context, old bool) (*wire.Msg, error) {
	if s.flight == nil {
		return nil, errTooMany
	}
	if s.leave != nil {
		defer s.leave()
	}
	if old {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, staleAfter)
		defer cancel()
	}
	select {
	case <-s.done:
		return s.reply, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fly asks the upstream, and keeps the answer.
func (f *Forwarder) fly(ctx context.Context, k key, to *flight) {
	defer close(to.done)
	to.reply, to.err = f.upstream.Exchange(ctx, k.query())
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.flights, k)
	f.note(k, to.reply, to.err, time.Now())
}

// note keeps what the upstream said. That it could not answer is kept as well, but never in the place of an answer.
func (f *Forwarder) note(k key, reply *wire.Msg, err error, now time.Time) {
	old := f.cache.entries[k]
	switch {
	case errors.Is(err, errNoUpstream):
		return // nobody was asked
	case err == nil && known(reply):
		if life := lifeOf(k, reply); life > 0 {
			f.keep(keep(k, reply, now, life))
		} else if old != nil {
			f.cache.remove(old)
		}
	case old != nil && !old.failed:
		old.recheck = now.Add(recheckAfter)
	default:
		if err != nil {
			reply = refusal(k.query(), wire.RcodeServerFailure)
		}
		f.keep(keep(k, reply, now, failureLife))
	}
}

func (f *Forwarder) keep(e *kept) {
	if e != nil {
		f.cache.put(e)
	}
}
