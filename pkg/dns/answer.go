// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"slices"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The numbers of a SOA record, as CoreDNS has them, in seconds.
const (
	soaRefresh = 7200
	soaRetry   = 1800
	soaExpire  = 86400
	soaLongest = 300 // of its own lifetime
)

// weightTotal is what the weights of one SRV answer add up to, rounding apart.
const weightTotal = 100

// answer is the answer to one question about a name of ours while it is made. The view is locked while it is looked up.
type answer struct {
	*Responder
	zone  string // as the question spells it
	name  string
	qtype uint16

	exists  bool
	doubt   bool // no answer is right
	records []wire.RR
	glue    []wire.RR
	alias   string // to be chased: the name is an ExternalName

	synced    bool // as in View
	authority wire.RR
}

// forward answers a name of a cluster zone.
func (a *answer) forward() {
	m := a.find(labelsOf(a.name, a.zone))
	if m.server {
		for _, s := range a.servers() {
			m.candidates = append(m.candidates, candidate{address: s.address})
		}
	}
	a.exists, a.doubt = m.exists, m.doubt
	switch a.qtype {
	case wire.TypeA, wire.TypeAAAA:
		a.alias = m.alias
		a.addresses(m)
	case wire.TypeCNAME:
		if m.alias != "" {
			a.records = []wire.RR{a.cname(a.name, m.alias)}
		} else if len(m.candidates) > 0 && m.candidates[0].target() != "" {
			a.records = []wire.RR{a.cname(a.name, m.candidates[0].target())}
		}
	case wire.TypeSRV:
		a.services(m)
	case wire.TypeTXT:
		if m.text != "" {
			a.records = []wire.RR{&wire.TXT{Hdr: header(a.name, wire.TypeTXT, versionTTL), Txt: []string{m.text}}}
		}
	}
}

// apex answers the name of a zone itself.
func (a *answer) apex() {
	a.exists = true
	switch a.qtype {
	case wire.TypeSOA:
		a.records = []wire.RR{a.soa()}
	case wire.TypeNS:
		a.nameServers()
	}
}

// addresses answers A or AAAA: each address once, nearest first where that was asked for, otherwise in any order.
func (a *answer) addresses(m match) {
	a.mix(m.candidates, m.ordered)
	found := make([]netip.Addr, 0, len(m.candidates))
	var seen map[netip.Addr]bool // where there are many
	if len(m.candidates) > few {
		seen = make(map[netip.Addr]bool, len(m.candidates))
	}
	for _, c := range m.candidates {
		switch {
		case !c.address.IsValid():
			if a.alias == "" && len(found) == 0 {
				a.alias = c.target()
			}
		case typeOf(c.address) != a.qtype, seen[c.address], seen == nil && slices.Contains(found, c.address):
		default:
			if seen != nil {
				seen[c.address] = true
			}
			found = append(found, c.address)
		}
	}
	a.records = a.addressRecords(a.name, found)
}

// few is of how many addresses a list is searched as fast as a map.
const few = 16

// addressRecords are those of one name, of one type, in one piece of memory.
func (a *answer) addressRecords(name string, found []netip.Addr) []wire.RR {
	if len(found) == 0 {
		return nil
	}
	all, header := make([]wire.RR, len(found)), header(name, a.qtype, a.options.TTL)
	if a.qtype == wire.TypeA {
		records := make([]struct {
			wire.A
			four [4]byte
		}, len(found))
		for i, ip := range found {
			r := &records[i]
			r.four = ip.As4()
			r.A, all[i] = wire.A{Hdr: header, A: r.four[:]}, &r.A
		}
		return all
	}
	records := make([]struct {
		wire.AAAA
		six [16]byte
	}, len(found))
	for i, ip := range found {
		r := &records[i]
		r.six = ip.As16()
		r.AAAA, all[i] = wire.AAAA{Hdr: header, AAAA: r.six[:]}, &r.AAAA
	}
	return all
}

// mix brings candidates into any order; of ordered ones those that are equally near, which stand together.
func (a *answer) mix(all []candidate, ordered bool) {
	for len(all) > 0 {
		n := 1
		for n < len(all) && (!ordered || all[n].near == all[0].near) {
			n++
		}
		part := all[:n]
		a.shuffle(n, func(i, j int) { part[i], part[j] = part[j], part[i] })
		all = all[n:]
	}
}

// services answers SRV: a record for each name and port, with the addresses of the names. The weight is that of all candidates, before
// those that say the same are left out (CoreDNS).
func (a *answer) services(m match) {
	found := slices.DeleteFunc(m.candidates, func(c candidate) bool { return !c.address.IsValid() || m.server })
	a.mix(found, m.ordered)
	type record struct {
		target string
		port   uint16
	}
	type glue struct {
		target  string
		address netip.Addr
	}
	told, glued := map[record]bool{}, map[glue]bool{}
	var text []byte
	below := a.target(m.owner, "")
	for _, c := range found {
		if c.number() == 0 {
			continue
		}
		target := below
		if text = c.appendHost(text[:0]); len(text) > 0 {
			text = append(append(text, '.'), below...)
			target = string(text)
		}
		if key := (record{target, c.number()}); !told[key] {
			told[key] = true
			a.records = append(a.records, &wire.SRV{Hdr: header(a.name, wire.TypeSRV, a.options.TTL), Target: target, Port: c.number(),
				Weight: weightOf(found)})
		}
		if key := (glue{target, c.address}); !glued[key] {
			glued[key] = true
			a.glue = append(a.glue, a.address(target, c.address))
		}
	}
}

// weightOf is the weight of each of some candidates.
func weightOf(found []candidate) uint16 { return uint16(max(1, weightTotal/len(found))) }

// target is the name of a Service in the zone as the question spells it, or of an endpoint of it.
func (a *answer) target(name lb.ServiceName, host string) string {
	return serviceName(name, host, a.zone)
}

func serviceName(name lb.ServiceName, host, zone string) string {
	if host != "" {
		host += "."
	}
	return host + name.Name + "." + name.Namespace + "." + labelService + "." + zone
}

// nameServers answers NS: the names under which clients reach this server, with their addresses.
func (a *answer) nameServers() {
	told := map[string]bool{}
	for _, s := range a.servers() {
		if !told[s.target] {
			told[s.target] = true
			a.records = append(a.records, &wire.NS{Hdr: header(a.name, wire.TypeNS, a.options.TTL), Ns: s.target})
		}
		a.glue = append(a.glue, a.address(s.target, s.address))
	}
}

// nameServer is a name of this server with an address of it.
type nameServer struct {
	address netip.Addr
	target  string
}

// servers are the addresses of the Services that this server answers for, each with its name; where there is none the server's own
// addresses, under ns.dns. Each is told once.
func (a *answer) servers() (all []nameServer) {
	told := map[nameServer]bool{}
	add := func(ip netip.Addr, target string) {
		if s := (nameServer{ip, target}); !told[s] {
			told[s] = true
			all = append(all, s)
		}
	}
	services := a.answersFor()
	for _, e := range services {
		if e.service.Unserved {
			continue
		}
		for _, ip := range e.service.ClusterIPs {
			add(ip, a.target(e.service.Name, ""))
		}
		if !e.service.Headless {
			continue
		}
		for _, c := range e.backends(a.view.options.Node, choice{}) {
			if c.address.IsValid() {
				add(c.address, a.target(e.service.Name, c.host()))
			}
		}
	}
	for _, own := range a.options.OwnAddresses {
		if len(services) == 0 {
			add(own, "ns.dns."+a.zone)
		}
	}
	return all
}

// answersFor are the Services whose clients ask this server. A node's own address is an endpoint of many others.
func (a *answer) answersFor() (all []*entry) {
	if a.options.Service != (lb.ServiceName{}) {
		if e := a.view.services[a.options.Service]; e != nil {
			all = append(all, e)
		}
		return all
	}
	for _, own := range a.options.OwnAddresses {
		all = append(all, a.view.owners(&a.view.endpoints, own)...)
	}
	return all
}

// soa is the zone's, for its apex and for every negative answer (RFC 2308).
func (a *answer) soa() wire.RR {
	return &wire.SOA{
		Hdr: header(a.zone, wire.TypeSOA, min(a.options.TTL, soaLongest)),
		Ns:  "ns.dns." + a.zone, Mbox: "hostmaster." + a.zone, Serial: a.view.serial,
		Refresh: soaRefresh, Retry: soaRetry, Expire: soaExpire, Minttl: a.options.TTL,
	}
}

func (a *answer) cname(name, target string) *wire.CNAME {
	return &wire.CNAME{Hdr: header(name, wire.TypeCNAME, a.options.TTL), Target: target}
}

func (a *answer) address(name string, ip netip.Addr) wire.RR {
	if ip.Is4() {
		return &wire.A{Hdr: header(name, wire.TypeA, a.options.TTL), A: ip.AsSlice()}
	}
	return &wire.AAAA{Hdr: header(name, wire.TypeAAAA, a.options.TTL), AAAA: ip.AsSlice()}
}

func typeOf(ip netip.Addr) uint16 {
	if ip.Is4() {
		return wire.TypeA
	}
	return wire.TypeAAAA
}

func header(name string, rrtype uint16, ttl uint32) wire.RR_Header {
	return wire.RR_Header{Name: name, Rrtype: rrtype, Class: wire.ClassINET, Ttl: ttl}
}
