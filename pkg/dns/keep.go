// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	wire "github.com/miekg/dns"
)

// The longest lifetimes in the cache: CoreDNS's. What is denied is kept no longer than RFC 2308 5 advises.
const (
	longestLife     = time.Hour
	longestNegative = 30 * time.Minute
)

// failureLife is how long it is kept that the upstream does not answer a question (RFC 9520 3.2: a second at least): clients that ask again
// and again do not each wait for it.
const failureLife = time.Second

// key is what an answer depends on.
type key struct {
	name                       string // lower case
	qtype, class               uint16
	dnssec, unchecked, recurse bool // the bits DO, CD and RD
}

func keyOf(query *wire.Msg) key {
	q := query.Question[0]
	edns := query.IsEdns0()
	return key{wire.CanonicalName(q.Name), q.Qtype, q.Qclass, edns != nil && edns.Do(), query.CheckingDisabled, query.RecursionDesired}
}

// query is the question that all clients of a key share.
func (k key) query() *wire.Msg {
	m := new(wire.Msg)
	m.SetQuestion(k.name, k.qtype)
	m.Question[0].Qclass = k.class
	m.CheckingDisabled, m.RecursionDesired = k.unchecked, k.recurse
	if k.dnssec {
		m.SetEdns0(upstreamSize, true)
	}
	return m
}

// known tells that a server found what a name has, or that there is none. All else is no answer (RFC 8767 4).
func known(reply *wire.Msg) bool {
	return reply.Rcode == wire.RcodeSuccess || reply.Rcode == wire.RcodeNameError
}

// lifeOf is how long an answer may be kept; 0: not at all.
func lifeOf(k key, reply *wire.Msg) time.Duration {
	most, least := longestLife, uint32(math.MaxUint32)
	if reply.Truncated {
		return 0
	}
	if denies(k, reply) {
		most, least = longestNegative, minimum(reply)
	}
	for _, rr := range records(reply) {
		least = min(least, rr.Header().Ttl)
	}
	return min(most, time.Duration(least)*time.Second)
}

// denies tells that the name, or what it is another name for, does not exist or has no record of the type (RFC 2308 2).
func denies(k key, reply *wire.Msg) bool {
	ofType := func(rr wire.RR) bool { return k.qtype == wire.TypeANY || rr.Header().Rrtype == k.qtype }
	return reply.Rcode == wire.RcodeNameError || !slices.ContainsFunc(reply.Answer, ofType)
}

// minimum is how long a denial may be kept by its SOA, in seconds. One without SOA may not be (RFC 2308 5).
func minimum(reply *wire.Msg) uint32 {
	for _, rr := range reply.Ns {
		if soa, ok := rr.(*wire.SOA); ok {
			return soa.Minttl
		}
	}
	return 0
}

// records are those of all sections that have a lifetime.
func records(m *wire.Msg) []wire.RR {
	all := slices.Concat(m.Answer, m.Ns, m.Extra)
	return slices.DeleteFunc(all, func(rr wire.RR) bool { return rr.Header().Rrtype == wire.TypeOPT })
}

// keep packs an answer; nil: it is no message.
func keep(k key, reply *wire.Msg, now time.Time, life time.Duration) *kept {
	reply = reply.Copy()
	reply.Compress = true
	message, err := reply.Pack()
	if err != nil {
		return nil
	}
	return &kept{key: k, message: slices.Clone(message), received: now, life: life, failed: !known(reply)}
}

// answer is what was kept as the answer to a client's question, older by the time that it was kept.
func (k *kept) answer(query *wire.Msg, now time.Time) (*wire.Msg, Way, error) {
	reply := new(wire.Msg)
	if err := reply.Unpack(k.message); err != nil {
		return nil, WayCached, err
	}
	way, age, most := WayCached, uint32(now.Sub(k.received)/time.Second), uint32(k.life/time.Second)
	if !k.fresh(now) {
		way = WayStale
	}
	for _, rr := range records(reply) {
		if h := rr.Header(); way == WayStale {
			h.Ttl = staleTTL
		} else {
			h.Ttl = min(h.Ttl, most) // a denial's SOA may have more than its minimum (RFC 2308 5)
			h.Ttl -= min(age, h.Ttl)
		}
	}
	shuffle(reply.Answer)
	return answerTo(query, reply), way, nil
}

// shuffle brings addresses into any order: clients that take the first of them share the servers.
func shuffle(answer []wire.RR) {
	var at []int
	for i, rr := range answer {
		if t := rr.Header().Rrtype; t == wire.TypeA || t == wire.TypeAAAA {
			at = append(at, i)
		}
	}
	rand.Shuffle(len(at), func(i, j int) { answer[at[i]], answer[at[j]] = answer[at[j]], answer[at[i]] })
}
