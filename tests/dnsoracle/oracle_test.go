// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"testing"

	wire "github.com/miekg/dns"
	"pgregory.net/rapid"
)

// questionsOfEach is how many questions are asked about each cluster.
const questionsOfEach = 400

func TestCoreDNSGivesTheSameAnswers(t *testing.T) {
	seen := tally{}
	rapid.Check(t, func(rt *rapid.T) {
		s, objects := anySetup(rt), anyCluster(rt)
		ask := newAsker(rapid.Uint64().Draw(rt, "questions"))
		theirs, ours := startCoreDNS(rt, t.TempDir(), s, true, objects...), startNearlb(rt, s, true, objects...)
		for range questionsOfEach {
			q := ask.question()
			want, got := theirs.answer(q.message, q.from), askNearlb(ours, q.message, q.from)
			if !same(want, got) && meant(q.message.Question[0], want, got) == "" {
				rt.Fatalf("%v, with %+v: CoreDNS (-) and nearlb (+) differ:\n%s\n%s", q, s, unlike(want, got), textOf(rt, objects))
			}
			seen.note(q.message.Question[0].Qtype, want)
		}
	})
	seen.check(t)
}

// Before the first list nothing is known not to be there.
func TestCoreDNSGivesTheSameAnswersBeforeItKnowsAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := anySetup(rt)
		ask := newAsker(rapid.Uint64().Draw(rt, "questions"))
		theirs, ours := startCoreDNS(rt, t.TempDir(), s, false), startNearlb(rt, s, false)
		for range questionsOfEach {
			q := ask.question()
			want, got := theirs.answer(q.message, q.from), askNearlb(ours, q.message, q.from)
			if !same(want, got) && meant(q.message.Question[0], want, got) == "" {
				rt.Fatalf("%v, with %+v: CoreDNS (-) and nearlb (+) differ:\n%s", q, s, unlike(want, got))
			}
		}
	})
}

// tally counts what CoreDNS answered: a comparison of nothing but missing names would say little.
type tally map[string]int

func (all tally) note(qtype uint16, m *wire.Msg) {
	switch {
	case m.Rcode != wire.RcodeSuccess:
		all[wire.RcodeToString[m.Rcode]]++
	case len(m.Answer) == 0:
		all["no records"]++
	default:
		all[wire.TypeToString[qtype]]++
	}
}

func (all tally) check(t *testing.T) {
	for _, what := range []string{"A", "AAAA", "SRV", "PTR", "CNAME", "TXT", "SOA", "NS", "no records", "NXDOMAIN", "REFUSED"} {
		if all[what] == 0 {
			t.Errorf("never seen: %s", what)
		}
	}
	t.Log(all)
}
