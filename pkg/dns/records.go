// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Records are the A, AAAA, CNAME and SRV records of Services' and endpoints' own names in the first zone, each once. Nobody else is asked:
// what an ExternalName outside leads to is not listed. Those of a Service are made when its turn comes, of the state that it has then; who
// answers questions or changes the view does not wait for that.
func (r *Responder) Records(ctx context.Context) iter.Seq[Record] {
	alone := *r
	alone.options.Forwarder, alone.shuffle = nil, func(int, func(int, int)) {}
	zone := r.options.Zones[0]
	return func(yield func(Record) bool) {
		r.view.mu.RLock()
		services := slices.Collect(maps.Keys(r.view.services))
		r.view.mu.RUnlock()
		slices.SortFunc(services, lb.ServiceName.Compare)
		for _, service := range services {
			r.view.mu.RLock()
			e, node := r.view.services[service], r.view.options.Node
			r.view.mu.RUnlock()
			if e == nil || e.service.Unserved {
				continue
			}
			records := func(yield func(Record) bool) bool { return alone.ask(ctx, e.names(zone), yield) }
			if r.isPlain(e, zone) {
				l := lister{entry: e, node: node, zone: zone, printed: wire.Name(zone).String(), ttl: r.options.TTL, ignoreEmpty: r.options.IgnoreEmpty}
				records = l.list
			}
			if !records(yield) {
				return
			}
		}
	}
}

// names are the name of a Service, and then those of its endpoints in order.
func (e *entry) names(zone string) []string {
	own := []string{serviceName(e.service.Name, "", zone)}
	for c := range e.endpoints() {
		own = append(own, serviceName(e.service.Name, c.host(), zone))
	}
	slices.Sort(own[1:])
	return slices.Compact(own)
}

// ask answers questions for names, which tells of all of them, however odd. False: the caller has enough.
func (r *Responder) ask(ctx context.Context, names []string, yield func(Record) bool) bool {
	for _, name := range names {
		told, why := map[Record]bool{}, r.Explain(name)
		for _, qtype := range []uint16{wire.TypeA, wire.TypeAAAA, wire.TypeSRV} {
			reply, _ := r.Answer(ctx, new(wire.Msg).SetQuestion(name, qtype), Client{})
			for _, rr := range reply.Answer {
				record := recordOf(rr, why)
				// What an ExternalName leads to has records of its own, and its CNAME answers for both families.
				if record.Name != name || told[record] {
					continue
				}
				if told[record] = true; !yield(record) {
					return false
				}
			}
		}
	}
	return true
}

// isPlain tells whether questions for an entry's names are answered with nothing but its own addresses and ports, so that none needs to be
// asked: it has no other name, what its names are made of are labels, and no other zone has them.
func (r *Responder) isPlain(e *entry, zone string) bool {
	name := e.service.Name
	if e.service.ExternalName != "" || !isLabel(name.Name) || !isLabel(name.Namespace) {
		return false
	}
	if in, _, _ := r.Zone(serviceName(name, "", zone)); in != zone {
		return false
	}
	for c := range e.endpoints() {
		if given := given(c.slice, int(c.endpoint), c.podNames); !c.address.IsValid() || given != "" && !isLabel(given) {
			return false
		}
	}
	return true
}

// isLabel tells whether a text is one label that stands for itself in a name.
func isLabel(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// lister makes the records of a plain entry: for each name what its candidates come to, as answer does.
type lister struct {
	*entry
	node          lb.Node
	zone, printed string // as it is, and as records print it
	ttl           uint32
	ignoreEmpty   bool
}

// list is false where the caller has enough.
func (l *lister) list(yield func(Record) bool) bool {
	if !l.listOwn(yield) {
		return false
	}
	by := map[string][]candidate{}
	for _, c := range l.backends(l.node, choice{}) {
		host := c.host()
		by[host] = append(by[host], c)
	}
	hosts := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return strings.Compare(a+".", b+".") })
	for _, host := range hosts {
		if !l.listName(host, by[host], true, yield) {
			return false
		}
	}
	return true
}

// listOwn lists the name of the Service itself.
func (l *lister) listOwn(yield func(Record) bool) bool {
	switch {
	case l.service.Headless:
		found, _ := question{}.backends(l.entry, l.node)
		return l.listName("", found, true, yield)
	case l.ignoreEmpty && !l.hasReady():
		return true
	}
	return l.listName("", l.frontends(), false, yield)
}

// listName lists what one name answers with. Only endpoints are near or far.
func (l *lister) listName(host string, found []candidate, endpoints bool, yield func(Record) bool) bool {
	record := Record{Name: serviceName(l.service.Name, host, l.zone), TTL: l.ttl}
	tell := func() bool { return yield(record) }
	if len(found) > 1 {
		told := map[string]bool{}
		tell = func() bool {
			if told[record.Data] {
				return true
			}
			told[record.Data] = true
			return yield(record)
		}
	}
	tiers := l.tiers(found, endpoints)
	for _, qtype := range []uint16{wire.TypeA, wire.TypeAAAA} {
		record.Type = wire.TypeToString[qtype]
		for _, c := range found {
			if typeOf(c.address) != qtype {
				continue
			}
			if record.Data, record.Tier = c.address.String(), tiers(c); !tell() {
				return false
			}
		}
	}
	record.Type, record.Tier = "SRV", ""
	for _, c := range found {
		if c.number() == 0 {
			continue
		}
		target := serviceName(l.service.Name, c.host(), l.printed)
		if record.Data = "0 " + strconv.Itoa(int(weightOf(found))) + " " + strconv.Itoa(int(c.number())) + " " + target; !tell() {
			return false
		}
	}
	return true
}

// tiers says how near candidates are; of an address that is there more than once the last one says it for all.
func (l *lister) tiers(found []candidate, endpoints bool) func(candidate) string {
	switch {
	case !endpoints:
		return func(candidate) string { return "" }
	case len(found) == 1:
		return func(c candidate) string { return c.nearness(l.node).String() }
	}
	tiers := map[netip.Addr]string{}
	for _, c := range found {
		tiers[c.address] = c.nearness(l.node).String()
	}
	return func(c candidate) string { return tiers[c.address] }
}
