// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"strings"

	wire "github.com/miekg/dns"
)

// outsideNames are names that outside knows something about.
var outsideNames = []string{"www.example.com", "alias.example.com", "missing.example.com", "failing.example.com", "refused.example.com"}

// outside answers names that are not the cluster's, as a recursive server does.
func outside(query *wire.Msg) *wire.Msg {
	out := new(wire.Msg)
	out.SetReply(query)
	out.RecursionAvailable = true
	q := query.Question[0]
	name := strings.ToLower(q.Name)
	add := func(owner, rest string) {
		if rr, err := wire.NewRR(owner + " 300 IN " + rest); err == nil {
			out.Answer = append(out.Answer, rr)
		}
	}
	switch {
	case strings.HasPrefix(name, "failing."):
		out.Rcode = wire.RcodeServerFailure
	case strings.HasPrefix(name, "refused."):
		out.Rcode = wire.RcodeRefused
	case strings.HasPrefix(name, "www.") && q.Qtype == wire.TypeA:
		add(q.Name, "A 192.0.2.80")
	case strings.HasPrefix(name, "www."):
	case strings.HasPrefix(name, "alias.") && q.Qtype == wire.TypeA:
		add(q.Name, "CNAME www.example.com.")
		add("www.example.com.", "A 192.0.2.80")
	case strings.HasPrefix(name, "alias."):
		add(q.Name, "CNAME www.example.com.")
	default:
		out.Rcode = wire.RcodeNameError
	}
	return out
}
