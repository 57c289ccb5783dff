// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// LookUp is what a look-up comes to, and why: the contract of `nearlb dns query -o json`.
type LookUp struct {
	Name    string        `json:"name"`
	Type    string        `json:"type"`
	Rcode   string        `json:"rcode"`
	Way     Way           `json:"way"`
	Rule    string        `json:"rule"`
	Answers []Record      `json:"answers"`
	LeftOut []LeftOut     `json:"left_out"`
	Walk    []AskedBefore `json:"walk"`
}

// Record is one record of an answer.
type Record struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Data string `json:"data"`
	TTL  uint32 `json:"ttl"`
	Tier string `json:"tier,omitempty"` // how near an endpoint is
}

// AskedBefore is a name that a search list leads through.
type AskedBefore struct {
	Name  string `json:"name"`
	Rcode string `json:"rcode"`
}

// LookUp asks for names until one has records; where none has, the last answers. All records are told, however many a message could carry.
func (r *Responder) LookUp(ctx context.Context, walk []string, qtype uint16) LookUp {
	out := LookUp{Type: wire.TypeToString[qtype], Answers: []Record{}, LeftOut: []LeftOut{}, Walk: []AskedBefore{}}
	for i, name := range walk {
		reply, way := r.Answer(ctx, new(wire.Msg).SetQuestion(name, qtype), Client{})
		out.Name, out.Way, out.Rcode = name, way, wire.RcodeToString[reply.Rcode]
		if len(reply.Answer) == 0 && i < len(walk)-1 {
			out.Walk = append(out.Walk, AskedBefore{out.Name, out.Rcode})
			continue
		}
		why := r.Explain(name)
		out.Rule = why.Rule
		for _, rr := range reply.Answer {
			out.Answers = append(out.Answers, recordOf(rr, why))
		}
		for _, left := range why.LeftOut {
			if isOfType(left.Address, qtype) {
				out.LeftOut = append(out.LeftOut, left)
			}
		}
		break
	}
	return out
}

// isOfType tells whether a question for a type could be answered with an address.
func isOfType(a netip.Addr, qtype uint16) bool {
	return qtype == wire.TypeSRV || qtype == wire.TypeA && a.Is4() || qtype == wire.TypeAAAA && a.Is6()
}

func recordOf(rr wire.RR, why Explanation) Record {
	h := rr.Header()
	data := strings.TrimPrefix(rr.String(), h.String())
	out := Record{Name: h.Name, Type: wire.TypeToString[h.Rrtype], Data: data, TTL: h.Ttl}
	if a, err := netip.ParseAddr(data); err == nil {
		out.Tier = why.Tiers[a]
	}
	return out
}

// NamespacesOf are those of the Pods that have an address, as far as the view knows: it reads Pods, or slices name them.
func (v *View) NamespacesOf(address netip.Addr) (all []string) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, pod := range v.pods[address] {
		all = append(all, pod.Namespace)
	}
	for _, owner := range v.owners(&v.endpoints, address) {
		if owner.hasPod(address) {
			all = append(all, owner.service.Name.Namespace)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// PodAt is the Pod that has an address, where Pods are read; false where several have.
func (v *View) PodAt(address netip.Addr) (name lb.PodName, known bool) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, name = range v.pods[address] {
	}
	return name, len(v.pods[address]) == 1
}

// hasPod tells whether an address is that of a Pod.
func (e *entry) hasPod(address netip.Addr) bool {
	for _, slice := range e.service.Slices {
		for _, in := range slice.Endpoints {
			if in.Is&lb.HasTarget != 0 && in.Addr() == address {
				return true
			}
		}
	}
	return false
}
