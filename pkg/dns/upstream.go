// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	wire "github.com/miekg/dns"
)

const (
	tryTime      = 2 * time.Second  // for one upstream
	avoidTime    = 10 * time.Second // after one did not answer, others are asked first
	upstreamSize = 1232             // bytes over UDP: no fragments on any usual path (DNS flag day 2020)
)

// Upstreams asks name servers one after the other until one answers: by UDP, and by TCP what does not fit.
type Upstreams struct {
	Observer Observer // nil: none. Set before the first question

	mu      sync.Mutex
	servers []*upstream
}

type upstream struct {
	address string

	mu     sync.Mutex
	failed time.Time // last; zero: it has answered since
}

// NewUpstreams may be without servers as long as Set names none: every question fails then.
func NewUpstreams(servers []netip.AddrPort) *Upstreams {
	u := &Upstreams{}
	u.Set(servers)
	return u
}

// Set puts other servers in the place of those before. What is known of one that stays is kept.
func (u *Upstreams) Set(servers []netip.AddrPort) {
	u.mu.Lock()
	defer u.mu.Unlock()
	var next []*upstream
	for _, s := range servers {
		at := slices.IndexFunc(u.servers, func(old *upstream) bool { return old.address == s.String() })
		if at >= 0 {
			next = append(next, u.servers[at])
		} else {
			next = append(next, &upstream{address: s.String()})
		}
	}
	u.servers = next
}

// errNoUpstream says that nobody is known who could be asked.
var errNoUpstream = errors.New("ask upstream: none is known")

// Exchange passes a question on, with an id, a source port and a spelling that nobody else can know, and returns what the first server
// says that knows an answer. SERVFAIL and REFUSED of one are another's chance.
func (u *Upstreams) Exchange(ctx context.Context, query *wire.Msg) (*wire.Msg, error) {
	var last *wire.Msg
	var errs []error
	for _, server := range u.order(time.Now()) {
		if ctx.Err() != nil { // it is not asked, so it is not silent either
			errs = append(errs, ctx.Err())
			break
		}
		began := time.Now()
		reply, err := server.ask(ctx, query)
		if u.Observer != nil {
			u.Observer.Asked(resultOf(reply, err), time.Since(began))
		}
		if ctx.Err() == nil { // else it may not have had its time
			server.note(err)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("ask %s: %w", server.address, err))
			continue
		}
		if last = reply; !failed(reply) {
			break
		}
	}
	if last == nil && len(errs) == 0 {
		return nil, errNoUpstream
	}
	if last == nil {
		return nil, errors.Join(errs...)
	}
	return answerTo(query, last), nil
}

// failed tells that a server could not or would not find an answer.
func failed(reply *wire.Msg) bool {
	return reply.Rcode == wire.RcodeServerFailure || reply.Rcode == wire.RcodeRefused
}

// order is that of the configuration, those that did not answer lately last.
func (u *Upstreams) order(now time.Time) []*upstream {
	type choice struct {
		*upstream
		failed int64
	}
	var all []choice
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.servers {
		s.mu.Lock()
		c := choice{upstream: s}
		switch {
		case s.failed.IsZero():
		case now.Sub(s.failed) < avoidTime:
			c.failed = s.failed.UnixNano()
		default:
			s.failed = now // this question tries it; the others avoid it until it has answered
		}
		s.mu.Unlock()
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(a.failed, b.failed) })
	var out []*upstream
	for _, c := range all {
		out = append(out, c.upstream)
	}
	return out
}

func (s *upstream) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed = (time.Time{}); err != nil {
		s.failed = time.Now()
	}
}

// ask tries UDP, once more without EDNS where a server does not know that, and TCP where the answer is cut off, or where a server does not
// keep the spelling of names and so might be anybody.
func (s *upstream) ask(ctx context.Context, query *wire.Msg) (*wire.Msg, error) {
	ask := new(wire.Msg)
	ask.Question = slices.Clone(query.Question)
	ask.Id, ask.RecursionDesired, ask.CheckingDisabled = wire.Id(), query.RecursionDesired, query.CheckingDisabled
	ask.Question[0].Name = mixCase(ask.Question[0].Name)
	ask.SetEdns0(upstreamSize, query.IsEdns0() != nil && query.IsEdns0().Do())
	reply, err := exchange(ctx, "udp", ask, s.address)
	if err == nil && reply.Rcode == wire.RcodeFormatError && reply.IsEdns0() == nil {
		ask.Id, ask.Extra = wire.Id(), nil // RFC 6891 7
		reply, err = exchange(ctx, "udp", ask, s.address)
	}
	if err == nil && !reply.Truncated && sameQuestion(ask, reply, false) {
		return reply, nil
	}
	if err != nil {
		return nil, err
	}
	if reply, err = exchange(ctx, "tcp", ask, s.address); err != nil {
		return nil, err
	}
	if !sameQuestion(ask, reply, true) {
		return nil, errors.New("the answer is to another question")
	}
	return reply, nil
}

func exchange(ctx context.Context, network string, ask *wire.Msg, address string) (*wire.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	client := wire.Client{Net: network, Timeout: tryTime}
	reply, _, err := client.ExchangeContext(ctx, ask, address)
	return reply, err
}

func sameQuestion(ask, reply *wire.Msg, anyCase bool) bool {
	if len(reply.Question) != 1 || !reply.Response {
		return false
	}
	a, b := ask.Question[0], reply.Question[0]
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && (a.Name == b.Name || anyCase && strings.EqualFold(a.Name, b.Name))
}

// answerTo makes a server's reply the answer to the client's own question, in its spelling.
func answerTo(query, reply *wire.Msg) *wire.Msg {
	out := reply.Copy()
	out.Id, out.Question = query.Id, slices.Clone(query.Question)
	name := query.Question[0].Name
	for _, records := range [][]wire.RR{out.Answer, out.Ns, out.Extra} {
		for _, rr := range records {
			if h := rr.Header(); strings.EqualFold(h.Name, name) {
				h.Name = name
			}
		}
	}
	out.Extra = slices.DeleteFunc(out.Extra, func(rr wire.RR) bool { return rr.Header().Rrtype == wire.TypeOPT }) // between us and the server
	out.Authoritative = false
	return out
}

// mixCase spells the letters of a name at random in upper or lower case, which an honest answer repeats (draft-vixie-dnsext-dns0x20).
func mixCase(name string) string {
	out := []byte(name)
	for i, c := range out {
		if 'a' <= c|0x20 && c|0x20 <= 'z' && rand.IntN(2) == 0 && (i == 0 || out[i-1] != '\\') {
			out[i] = c ^ 0x20
		}
	}
	return string(out)
}
