// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// PodRecords says which names of pods' addresses are answered: a-b-c-d.namespace.pod.zone.
type PodRecords string

// The modes of CoreDNS's plugin.
const (
	PodsDisabled PodRecords = "disabled" // none
	PodsInsecure PodRecords = "insecure" // any address in a Namespace that exists
	PodsVerified PodRecords = "verified" // those that a Pod of the Namespace has
)

// Options are what a Responder answers for. The zero value of a field is CoreDNS's default where there is one.
type Options struct {
	Zones        []string // cluster zones; the first is that of reverse names' answers
	ReverseZones []string
	Pods         PodRecords
	TTL          uint32       // seconds, 0 to 3600
	Zonal        bool         // answer zone.pin|prefer._zone.service names
	IgnoreEmpty  bool         // a Service with ClusterIPs and without ready endpoints does not exist
	OwnAddresses []netip.Addr // of this server: whose name NS is
	Forwarder    *Forwarder   // of names that are not ours; nil: they are refused
	Observer     Observer     // nil: none

	// Service is what clients ask, and whose name NS is; zero: every Service that has one of OwnAddresses as an endpoint.
	Service lb.ServiceName
}

// Responder answers messages from a View.
type Responder struct {
	view    *View
	options Options
	shuffle func(n int, swap func(i, j int))
}

// NewResponder takes zones with or without their last dot.
func NewResponder(v *View, o Options) *Responder {
	if o.Pods == "" {
		o.Pods = PodsDisabled
	}
	o.Zones, o.ReverseZones = absolute(o.Zones), absolute(o.ReverseZones)
	return &Responder{view: v, options: o, shuffle: rand.Shuffle}
}

// Lives returns once the view can be read, and tells whether it was told of everything.
func (r *Responder) Lives() bool {
	r.view.mu.RLock()
	defer r.view.mu.RUnlock()
	return r.view.synced
}

// IsZone tells whether a text can be the name of a zone of ours: one or more labels, with or without the last dot.
func IsZone(text string) bool {
	labels, ok := wire.IsDomainName(text)
	return ok && labels > 0 && !strings.ContainsAny(text, "\\ \t\"")
}

func absolute(zones []string) (out []string) {
	for _, zone := range zones {
		out = append(out, strings.ToLower(wire.Fqdn(zone)))
	}
	return out
}

// Zone is the zone of ours that a name is in, as the name spells it; false: in none.
func (r *Responder) Zone(name string) (zone string, reverse, ok bool) {
	longest := 0
	for i, all := range [][]string{r.options.Zones, r.options.ReverseZones} {
		for _, z := range all {
			if labels := wire.CountLabel(z); wire.IsSubDomain(z, name) && (!ok || labels > longest) {
				longest, reverse, ok = labels, i == 1, true
				zone = name[len(name)-len(z):]
			}
		}
	}
	return zone, reverse, ok
}

// Answer answers a well-formed query of class IN. It never fails: what cannot be known is SERVFAIL.
func (r *Responder) Answer(ctx context.Context, query *wire.Msg, from Client) (*wire.Msg, Way) {
	out, ask := r.answer(query)
	if ask != nil {
		return ask(ctx, from)
	}
	return out, WayResponder
}

// answer is Answer without whoever else is to be asked.
func (r *Responder) answer(query *wire.Msg) (*wire.Msg, outside) {
	q := query.Question[0]
	zone, reverse, ours := r.Zone(q.Name)
	if !ours {
		return r.forward(query)
	}
	out := new(wire.Msg)
	out.SetReply(query)
	out.Authoritative = true
	if q.Qtype == wire.TypeAXFR || q.Qtype == wire.TypeIXFR {
		out.Authoritative, out.Rcode = false, wire.RcodeRefused
		return out, nil
	}
	a := answer{Responder: r, zone: zone, name: q.Name, qtype: q.Qtype}
	a.look(reverse)
	if !a.exists && reverse && r.options.Forwarder != nil {
		return r.forward(query)
	}
	if leads := r.chase(&a, out); leads != "" && r.options.Forwarder != nil {
		return nil, func(ctx context.Context, from Client) (*wire.Msg, Way) {
			way := r.chaseOutside(ctx, query, from, leads, out)
			a.say(out)
			return out, way
		}
	}
	a.say(out)
	return out, nil
}

// look reads the view.
func (a *answer) look(reverse bool) {
	a.view.mu.RLock()
	defer a.view.mu.RUnlock()
	switch {
	case strings.EqualFold(a.name, a.zone):
		a.apex()
	case reverse:
		a.reverse()
	default:
		a.forward()
	}
	a.synced, a.authority = a.view.synced, a.soa()
}

// say adds what was found to the message.
func (a *answer) say(out *wire.Msg) {
	switch {
	case a.doubt, out.Rcode == wire.RcodeServerFailure, !a.exists && !a.synced:
		out.Rcode, a.records, a.glue = wire.RcodeServerFailure, nil, nil
	case !a.exists:
		out.Rcode = wire.RcodeNameError
	}
	out.Answer = append(out.Answer, a.records...)
	out.Extra = append(out.Extra, a.glue...)
	if len(out.Answer) == 0 {
		out.Ns = []wire.RR{a.authority}
	}
}

// forward asks the upstream; without one, or where it does not answer, the question is refused or fails.
func (r *Responder) forward(query *wire.Msg) (*wire.Msg, outside) {
	if r.options.Forwarder == nil {
		return refusal(query, wire.RcodeRefused), nil
	}
	return nil, func(ctx context.Context, from Client) (*wire.Msg, Way) {
		out, way, err := r.exchange(ctx, query, from)
		if err != nil {
			out = refusal(query, wire.RcodeServerFailure)
		}
		return out, way
	}
}

// exchange asks the upstream for a client. What is old is told of names outside of the cluster alone: what becomes of an address in it, of
// which its reverse name tells, is known there now.
func (r *Responder) exchange(ctx context.Context, query *wire.Msg, from Client) (*wire.Msg, Way, error) {
	_, _, ours := r.Zone(query.Question[0].Name)
	return r.options.Forwarder.Exchange(ctx, query, from.Address, !ours)
}

// refusal answers a query with a code alone.
func refusal(query *wire.Msg, rcode int) *wire.Msg {
	out := new(wire.Msg)
	out.SetRcode(query, rcode)
	return out
}
