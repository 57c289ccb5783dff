// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"fmt"
	"slices"
	"strings"

	wire "github.com/miekg/dns"
)

// lines are all that a message says, in the order of its sections; records of a section are in any order, and the serial of a zone is
// left out: both servers count seconds.
func lines(m *wire.Msg) []string {
	if m == nil {
		return []string{"no answer"}
	}
	out := []string{fmt.Sprintf("%s id %d opcode %d qr %v aa %v tc %v rd %v ra %v ad %v cd %v", wire.RcodeToString[m.Rcode], m.Id, m.Opcode, m.Response,
		m.Authoritative, m.Truncated, m.RecursionDesired, m.RecursionAvailable, m.AuthenticatedData, m.CheckingDisabled)}
	for _, q := range m.Question {
		out = append(out, "question "+q.String())
	}
	for i, records := range [][]wire.RR{m.Answer, m.Ns, m.Extra} {
		var section []string
		for _, rr := range records {
			if soa, is := rr.(*wire.SOA); is {
				without := *soa
				without.Serial = 0
				rr = &without
			}
			section = append(section, []string{"answer ", "authority ", "extra "}[i]+strings.Join(strings.Fields(rr.String()), " "))
		}
		slices.Sort(section)
		out = append(out, section...)
	}
	return out
}

// same tells whether two messages say the same. Of messages that were cut off, which records are left depends on their order.
func same(a, b *wire.Msg) bool {
	if a != nil && b != nil && a.Truncated && b.Truncated {
		return a.Rcode == b.Rcode && len(a.Answer) > 0 == (len(b.Answer) > 0)
	}
	return slices.Equal(lines(a), lines(b))
}

// unlike are the lines that one of two messages has alone.
func unlike(theirs, ours *wire.Msg) string {
	var out []string
	a, b := lines(theirs), lines(ours)
	for _, line := range a {
		if !slices.Contains(b, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}
