// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"slices"

	wire "github.com/miekg/dns"
)

// maxAliases is how many names of ours an ExternalName may lead through (CoreDNS).
const maxAliases = 10

// chase follows an ExternalName to addresses through names of ours, and returns the name that the upstream is to be asked for, if any. A CNAME
// is told even where it leads nowhere, which CoreDNS hides. An upstream that does not answer or says that it cannot makes the answer SERVFAIL,
// so that clients ask again, and so does a Service that is not in force.
func (r *Responder) chase(from *answer, out *wire.Msg) (leads string) {
	a := *from
	told := []string{}
	for a.alias != "" {
		out.Answer = append(out.Answer, a.cname(a.name, a.alias))
		told = append(told, wire.CanonicalName(a.name))
		zone, reverse, ours := r.Zone(a.alias)
		if !ours || reverse {
			return a.alias
		}
		if slices.Contains(told, wire.CanonicalName(a.alias)) || len(told) > maxAliases {
			break // a loop
		}
		a = answer{Responder: r, zone: zone, name: a.alias, qtype: from.qtype}
		a.look(false)
		if a.doubt || !a.exists && !a.synced {
			out.Answer, out.Rcode = nil, wire.RcodeServerFailure
			break
		}
		out.Answer = append(out.Answer, a.records...)
	}
	return ""
}

// chaseOutside asks the upstream for a name that is not ours.
func (r *Responder) chaseOutside(ctx context.Context, query *wire.Msg, client Client, name string, out *wire.Msg) Way {
	ask := new(wire.Msg)
	ask.SetQuestion(name, query.Question[0].Qtype)
	ask.RecursionDesired = true
	reply, way, err := r.exchange(ctx, ask, client)
	if err != nil || failed(reply) {
		out.Answer, out.Rcode = nil, wire.RcodeServerFailure
		return way
	}
	out.Answer = append(out.Answer, reply.Answer...)
	out.Truncated = out.Truncated || reply.Truncated
	return way
}
