// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"time"

	wire "github.com/miekg/dns"
)

// Observer is told of what a Responder and its Upstreams do. Its methods are called from any goroutine.
type Observer interface {
	// Answered tells of a client's question. A type and a code that few ask for and get are "other".
	Answered(qtype, rcode string, way Way, took time.Duration)
	// Asked tells of a question to one upstream.
	Asked(result Result, took time.Duration)
}

// Result says what became of a question to one upstream.
type Result string

// The results.
const (
	ResultAnswered Result = "answered"
	ResultFailed   Result = "failed" // SERVFAIL or REFUSED
	ResultSilent   Result = "silent" // no answer, or none that is one
)

// usual are the types that metrics tell apart.
var usual = map[uint16]bool{
	wire.TypeA: true, wire.TypeAAAA: true, wire.TypeSRV: true, wire.TypePTR: true, wire.TypeCNAME: true, wire.TypeTXT: true, wire.TypeSOA: true,
	wire.TypeNS: true, wire.TypeMX: true, wire.TypeHTTPS: true, wire.TypeANY: true,
}

// observe tells the observer of an answer.
func (r *Responder) observe(out *wire.Msg, way Way, took time.Duration) {
	if r.options.Observer != nil {
		qtype, rcode := wordsOf(out)
		r.options.Observer.Answered(qtype, rcode, way, took)
	}
}

// repeated tells the observer of an answer that was made before: it took no time that its clock could tell.
func (r *Responder) repeated(s *said) {
	if r.options.Observer != nil {
		r.options.Observer.Answered(s.qtype, s.rcode, WayResponder, 0)
	}
}

// wordsOf are the type and the code of an answer. All have the question, if there was one.
func wordsOf(out *wire.Msg) (qtype, rcode string) {
	qtype, rcode = "other", "other"
	if len(out.Question) > 0 && usual[out.Question[0].Qtype] {
		qtype = wire.TypeToString[out.Question[0].Qtype]
	}
	if out.Rcode <= wire.RcodeRefused {
		rcode = wire.RcodeToString[out.Rcode]
	}
	return qtype, rcode
}

// resultOf names what an upstream said.
func resultOf(reply *wire.Msg, err error) Result {
	switch {
	case err != nil:
		return ResultSilent
	case failed(reply):
		return ResultFailed
	}
	return ResultAnswered
}

// Asked is an upstream as people see it.
type Asked struct {
	Address string `json:"address"`
	Silent  bool   `json:"silent"` // it did not answer when it was asked last
}

// Servers are those of now, in order.
func (u *Upstreams) Servers() []Asked {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := []Asked{}
	for _, s := range u.servers {
		s.mu.Lock()
		all = append(all, Asked{s.address, !s.failed.IsZero()})
		s.mu.Unlock()
	}
	return all
}
