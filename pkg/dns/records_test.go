// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func tcp(name string, number uint16) lb.NamedPort {
	return lb.NamedPort{Name: name, Protocol: lb.TCP, Number: number}
}

func ready(address, hostname string) lb.NamedEndpoint {
	return lb.NamedEndpoint{Addresses: addrs(address), Hostname: hostname, Is: lb.IsReady}
}

// elsewhere is an endpoint that has a name instead of an address.
func elsewhere(target string) lb.NamedEndpoint {
	return lb.NamedEndpoint{Targets: []string{target}, Is: lb.IsReady}
}

func slice(name string, port lb.NamedPort, endpoints ...lb.NamedEndpoint) *lb.NamedSlice {
	return lb.NewNamedSlice(name, []lb.NamedPort{port}, endpoints...)
}

func named(namespace, name string) *lb.NamedService {
	return &lb.NamedService{Name: lb.ServiceName{Namespace: namespace, Name: name}}
}

// cluster has a Service for every rule of dns.md, section 1.
func cluster() []*lb.NamedService {
	web := named("prod", "web")
	web.ClusterIPs, web.Ports = addrs("10.96.0.10", "fd00:96::10"), []lb.NamedPort{tcp("http", 80), {Name: "dns", Protocol: lb.UDP, Number: 53}}
	web.Slices = []*lb.NamedSlice{slice("web-a", tcp("http", 8080), ready("10.244.1.10", "web-0"), lb.NamedEndpoint{Addresses: addrs("10.244.1.11")})}
	plain := named("prod", "plain")
	plain.ClusterIPs, plain.Ports = addrs("10.96.0.11"), []lb.NamedPort{tcp("", 80)}
	db := named("prod", "db")
	db.Headless, db.Ports = true, []lb.NamedPort{tcp("sql", 5432)}
	db.Slices = []*lb.NamedSlice{
		slice("db-a", tcp("sql", 5432), ready("10.244.1.1", "db-0"), ready("10.244.1.2", "")),
		slice("db-b", tcp("sql", 5433), ready("10.244.1.2", ""), lb.NamedEndpoint{Addresses: addrs("10.244.1.3")}),
		slice("db-c", tcp("sql", 5432), ready("fd00:244::1", "db-0"), ready("fd00:244:1::", "")),
	}
	empty := named("prod", "empty")
	empty.Headless = true
	portless := named("prod", "portless")
	portless.Headless = true
	portless.Slices = []*lb.NamedSlice{lb.NewNamedSlice("p", nil, ready("10.244.2.1", ""))}
	fqdn := named("prod", "fqdn")
	fqdn.Headless = true
	fqdn.Slices = []*lb.NamedSlice{lb.NewNamedSlice("f", nil, elsewhere("db.example.com"))}
	all := []*lb.NamedService{web, plain, db, empty, portless, fqdn}
	for name, target := range map[string]string{"out": "www.example.com", "in": "web.prod.svc.cluster.local", "two": "in.prod.svc.cluster.local",
		"loop": "pool.prod.svc.cluster.local", "pool": "loop.prod.svc.cluster.local", "lost": "nobody.prod.svc.cluster.local", "literal": "192.0.2.1",
		"silent": "silent.example.com", "failing": "failing.example.com", "long": strings.Repeat("x", 64) + ".example.com"} {
		s := named("prod", name)
		s.ExternalName = target
		all = append(all, s)
	}
	return all
}

// outside has an IPv4 address for every name, does not answer for silent.example.com, and fails for failing.example.com.
type outside struct{}

func (outside) Exchange(_ context.Context, query *wire.Msg) (*wire.Msg, error) {
	out := new(wire.Msg)
	out.SetReply(query)
	switch q := query.Question[0]; {
	case strings.HasPrefix(q.Name, "silent."):
		return nil, errors.New("no answer")
	case strings.HasPrefix(q.Name, "failing."):
		out.Rcode = wire.RcodeServerFailure
	case q.Qtype == wire.TypeA:
		rr, err := wire.NewRR(q.Name + " 300 IN A 192.0.2.80")
		out.Answer = append(out.Answer, rr)
		return out, err
	}
	return out, nil
}

func responder(o dns.Options, view dns.ViewOptions, services ...*lb.NamedService) *dns.Responder {
	v := dns.NewView(view)
	for _, s := range services {
		v.Set(s)
	}
	v.SetNamespace("idle", true)
	v.SetPod(lb.NamedPod{Name: lb.PodName{Namespace: "prod", Name: "web-0"}, Addresses: addrs("10.244.1.10")})
	v.Synced()
	o.TTL = 5
	if o.Zones == nil {
		o.Zones = []string{"cluster.local"}
	}
	return dns.NewResponder(v, o)
}

func query(name, qtype string) *wire.Msg {
	q := new(wire.Msg)
	q.SetQuestion(wire.Fqdn(name), wire.StringToType[qtype])
	return q
}

// ask is the answer in a line: the rcode, the answers sorted, and behind + the glue.
func ask(r *dns.Responder, name, qtype string) string {
	m := r.Serve(context.Background(), query(name, qtype), dns.Client{TCP: true})
	out := []string{wire.RcodeToString[m.Rcode]}
	for i, records := range [][]wire.RR{m.Answer, m.Extra} {
		var lines []string
		for _, rr := range records {
			data := strings.TrimPrefix(rr.String(), rr.Header().String())
			lines = append(lines, fmt.Sprintf("%s %s", wire.TypeToString[rr.Header().Rrtype], data))
		}
		slices.Sort(lines)
		if i == 1 && len(lines) > 0 {
			out = append(out, "+")
		}
		out = append(out, lines...)
	}
	if (len(m.Answer) == 0) != (len(m.Ns) == 1) && m.Authoritative {
		out = append(out, fmt.Sprintf("and %d records of authority", len(m.Ns)))
	}
	return strings.Join(out, " ")
}

func TestRecordsFollowTheSpecification(t *testing.T) {
	const (
		none    = "NXDOMAIN"
		nothing = "NOERROR"
	)
	r := responder(dns.Options{ReverseZones: []string{"in-addr.arpa", "ip6.arpa"}, Zonal: true}, dns.ViewOptions{}, cluster()...)
	withUpstream := responder(dns.Options{Forwarder: dns.NewForwarder(outside{})}, dns.ViewOptions{}, cluster()...)
	insecure := responder(dns.Options{Pods: dns.PodsInsecure}, dns.ViewOptions{}, cluster()...)
	verified := responder(dns.Options{Pods: dns.PodsVerified}, dns.ViewOptions{}, cluster()...)
	strict := responder(dns.Options{IgnoreEmpty: true}, dns.ViewOptions{}, cluster()...)
	for _, row := range []struct {
		rule, name, qtype, want string
		r                       *dns.Responder
	}{
		{"1 D26", "dns-version.cluster.local", "TXT", `NOERROR TXT "1.1.0"`, r},
		{"2 D3", "web.prod.svc.cluster.local", "A", "NOERROR A 10.96.0.10", r},
		{"3 D3", "web.prod.svc.cluster.local", "AAAA", "NOERROR AAAA fd00:96::10", r},
		{"4", "plain.prod.svc.cluster.local", "AAAA", nothing, r},
		{"5", "plain.prod.svc.cluster.local", "A", "NOERROR A 10.96.0.11", r},
		{"5 ignore", "plain.prod.svc.cluster.local", "A", none, strict},
		{"5 ignore", "web.prod.svc.cluster.local", "A", "NOERROR A 10.96.0.10", strict},
		{"7 D5 D6", "_http._tcp.web.prod.svc.cluster.local", "SRV", "NOERROR SRV 0 50 80 web.prod.svc.cluster.local. + A 10.96.0.10 AAAA fd00:96::10", r},
		{"7", "http.tcp.web.prod.svc.cluster.local", "A", "NOERROR A 10.96.0.10", r},
		{"8", "_tcp.plain.prod.svc.cluster.local", "SRV", none, r},
		{"8", "plain.prod.svc.cluster.local", "SRV", "NOERROR SRV 0 100 80 plain.prod.svc.cluster.local. + A 10.96.0.11", r},
		{"9", "_http._udp.web.prod.svc.cluster.local", "SRV", none, r},
		{"9", "_nope._tcp.web.prod.svc.cluster.local", "SRV", none, r},
		{"11", "10.0.96.10.in-addr.arpa", "PTR", "NOERROR PTR web.prod.svc.cluster.local.", r},
		{"11", "0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa", "PTR", "NOERROR PTR web.prod.svc.cluster.local.", r},
		{"12 D4 D16", "db.prod.svc.cluster.local", "A", "NOERROR A 10.244.1.1 A 10.244.1.2", r},
		{"12", "db.prod.svc.cluster.local", "AAAA", "NOERROR AAAA fd00:244:1:: AAAA fd00:244::1", r},
		{"13", "empty.prod.svc.cluster.local", "A", none, r},
		{"13", "empty.prod.svc.cluster.local", "TXT", none, r},
		{"16 D7 D10 D11 D13", "db-0.db.prod.svc.cluster.local", "A", "NOERROR A 10.244.1.1", r},
		{"16", "db-0.db.prod.svc.cluster.local", "AAAA", "NOERROR AAAA fd00:244::1", r},
		{"17 D9", "10-244-1-2.db.prod.svc.cluster.local", "A", "NOERROR A 10.244.1.2", r},
		{"17", "fd00-244-1--0.db.prod.svc.cluster.local", "AAAA", "NOERROR AAAA fd00:244:1::", r},
		{"18", "10-244-1-1.db.prod.svc.cluster.local", "A", none, r},
		{"19", "web-0.web.prod.svc.cluster.local", "A", "NOERROR A 10.244.1.10", r},
		{"14", "10-244-1-11.web.prod.svc.cluster.local", "A", none, r},
		{"21 D7 10", "_sql._tcp.db.prod.svc.cluster.local", "SRV", "NOERROR SRV 0 20 5432 10-244-1-2.db.prod.svc.cluster.local. " +
			"SRV 0 20 5432 db-0.db.prod.svc.cluster.local. SRV 0 20 5432 fd00-244-1--0.db.prod.svc.cluster.local. SRV 0 20 5433 10-244-1-2.db.prod.svc.cluster.local. " +
			"+ A 10.244.1.1 A 10.244.1.2 AAAA fd00:244:1:: AAAA fd00:244::1", r},
		{"22", "portless.prod.svc.cluster.local", "A", "NOERROR A 10.244.2.1", r},
		{"22", "portless.prod.svc.cluster.local", "SRV", nothing, r},
		{"23", "1.1.244.10.in-addr.arpa", "PTR", "NOERROR PTR db-0.db.prod.svc.cluster.local.", r},
		{"23", "10.1.244.10.in-addr.arpa", "PTR", "NOERROR PTR web-0.web.prod.svc.cluster.local.", r},
		{"24", "11.1.244.10.in-addr.arpa", "PTR", none, r},
		{"24", "3.1.244.10.in-addr.arpa", "PTR", none, r},
		{"24 above an address", "1.244.10.in-addr.arpa", "PTR", nothing, r},
		{"24 above nothing", "9.244.10.in-addr.arpa", "PTR", none, r},
		{"25", "out.prod.svc.cluster.local", "A", "NOERROR A 192.0.2.80 CNAME www.example.com.", withUpstream},
		{"25", "out.prod.svc.cluster.local", "A", "NOERROR CNAME www.example.com.", r},
		{"25", "out.prod.svc.cluster.local", "CNAME", "NOERROR CNAME www.example.com.", withUpstream},
		{"25", "two.prod.svc.cluster.local", "A", "NOERROR A 10.96.0.10 CNAME in.prod.svc.cluster.local. CNAME web.prod.svc.cluster.local.", r},
		{"26", "_http._tcp.out.prod.svc.cluster.local", "SRV", none, r},
		{"26", "x.out.prod.svc.cluster.local", "A", none, r},
		{"26", "out.prod.svc.cluster.local", "SRV", nothing, r},
		{"26", "_._.out.prod.svc.cluster.local", "SRV", nothing, r},
		{"26", "out.prod.svc.cluster.local", "HTTPS", nothing, r},
		{"27 ours: the CNAMEs are told", "loop.prod.svc.cluster.local", "A", "NOERROR CNAME loop.prod.svc.cluster.local. CNAME pool.prod.svc.cluster.local.", r},
		{"27", "lost.prod.svc.cluster.local", "A", "NOERROR CNAME nobody.prod.svc.cluster.local.", r},
		{"27", "silent.prod.svc.cluster.local", "A", "SERVFAIL", withUpstream},
		{"27", "failing.prod.svc.cluster.local", "A", "SERVFAIL", withUpstream},
		{"28", "literal.prod.svc.cluster.local", "A", none, r},
		{"29", "10-244-1-10.prod.pod.cluster.local", "A", none, r},
		{"30 D8", "172-17-0-3.prod.pod.cluster.local", "A", "NOERROR A 172.17.0.3", insecure},
		{"30", "fd00--3.prod.pod.cluster.local", "AAAA", "NOERROR AAAA fd00::3", insecure},
		{"30", "fd00--3.prod.pod.cluster.local", "A", nothing, insecure},
		{"30", "172-17-0.prod.pod.cluster.local", "A", none, insecure},
		{"30", "172-17-0-3.nowhere.pod.cluster.local", "A", none, insecure},
		{"31", "10-244-1-10.prod.pod.cluster.local", "A", "NOERROR A 10.244.1.10", verified},
		{"31", "10-244-1-10.idle.pod.cluster.local", "A", none, verified},
		{"31", "172-17-0-3.prod.pod.cluster.local", "A", none, verified},
		{"35", "fqdn.prod.svc.cluster.local", "A", "NOERROR A 192.0.2.80 CNAME db.example.com.", responder(dns.Options{Forwarder: dns.NewForwarder(outside{})}, dns.ViewOptions{}, cluster()...)},
		{"35", "db-example-com.fqdn.prod.svc.cluster.local", "CNAME", "NOERROR CNAME db.example.com.", r},
		{"35", "fqdn.prod.svc.cluster.local", "SRV", nothing, r},
		{"36", "idle.svc.cluster.local", "A", nothing, r},
		{"36", "idle.pod.cluster.local", "A", nothing, insecure},
		{"36", "nowhere.svc.cluster.local", "A", none, r},
		{"37", "svc.cluster.local", "A", nothing, r},
		{"37", "pod.cluster.local", "TXT", nothing, r},
		{"37", "cluster.local", "A", nothing, r},
		{"37", "other.cluster.local", "A", none, r},
		{"39", "cluster.local", "NS", "NOERROR NS ns.dns.cluster.local. + A 192.0.2.53", responder(dns.Options{OwnAddresses: addrs("192.0.2.53")}, dns.ViewOptions{}, cluster()...)},
		{"39", "ns.dns.cluster.local", "A", "NOERROR A 192.0.2.53", responder(dns.Options{OwnAddresses: addrs("192.0.2.53")}, dns.ViewOptions{}, cluster()...)},
		{"39", "cluster.local", "NS", "NOERROR NS plain.prod.svc.cluster.local. + A 10.96.0.11", responder(dns.Options{OwnAddresses: addrs("10.244.1.10"), Service: named("prod", "plain").Name}, dns.ViewOptions{}, cluster()...)},
		{"39", "cluster.local", "NS", "NOERROR NS ns.dns.cluster.local. + A 10.244.1.10", responder(dns.Options{OwnAddresses: addrs("10.244.1.10"), Service: named("prod", "nobody").Name}, dns.ViewOptions{}, cluster()...)},
		{"39", "cluster.local", "NS", "NOERROR NS web.prod.svc.cluster.local. + A 10.96.0.10 AAAA fd00:96::10", responder(dns.Options{OwnAddresses: addrs("10.244.1.10")}, dns.ViewOptions{}, cluster()...)},
		{"40", "cluster.local", "AXFR", "REFUSED", r},
		{"41", "*.prod.svc.cluster.local", "A", none, r},
		{"41", "any.prod.svc.cluster.local", "A", none, r},
		{"42", "web.prod.svc.cluster.local", "MX", nothing, r},
		{"42", "web.prod.svc.cluster.local", "ANY", nothing, r},
		{"43 D1", "data.prod.test.svc.cluster.local", "A", none, r},
		{"43", "a.b.c.web.prod.svc.cluster.local", "A", none, r},
		{"43", "nobody.prod.svc.cluster.local", "SOA", none, r},
		{"not ours", "www.example.com", "A", "REFUSED", r},
		{"not ours D19", "www.example.com", "A", "NOERROR A 192.0.2.80", withUpstream},
		{"SERVFAIL upstream", "silent.example.com", "A", "SERVFAIL", withUpstream},
	} {
		t.Run(strings.Join([]string{row.rule, row.name, row.qtype}, " "), func(t *testing.T) {
			if diff := cmp.Diff(row.want, ask(row.r, row.name, row.qtype)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheApexHasAStartOfAuthority(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{}, cluster()...)
	m := r.Serve(context.Background(), query("Cluster.Local", "SOA"), dns.Client{})
	soa, ok := m.Answer[0].(*wire.SOA)
	if !ok || soa.Hdr.Ttl != 5 || soa.Ns != "ns.dns.Cluster.Local." || soa.Mbox != "hostmaster.Cluster.Local." ||
		soa.Refresh != 7200 || soa.Retry != 1800 || soa.Expire != 86400 || soa.Minttl != 5 || soa.Serial == 0 {
		t.Errorf("got %v", m.Answer)
	}
}

func TestAnswersKeepTheSpellingOfTheQuestion(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{}, cluster()...)
	m := r.Serve(context.Background(), query("_HTTP._tcp.Web.PROD.svc.Cluster.LOCAL", "SRV"), dns.Client{})
	if got := m.Answer[0].Header().Name; got != "_HTTP._tcp.Web.PROD.svc.Cluster.LOCAL." {
		t.Errorf("owner %s", got)
	}
	if got := m.Answer[0].(*wire.SRV).Target; got != "web.prod.svc.Cluster.LOCAL." {
		t.Errorf("target %s", got)
	}
}

func TestNothingIsDeniedBeforeEverythingWasListed(t *testing.T) {
	v := dns.NewView(dns.ViewOptions{})
	v.Set(cluster()[0])
	out := named("prod", "out")
	out.ExternalName = "db.prod.svc.cluster.local"
	v.Set(out)
	r := dns.NewResponder(v, dns.Options{Zones: []string{"cluster.local"}, TTL: 5})
	for name, want := range map[string]string{"db.prod.svc.cluster.local": "SERVFAIL", "out.prod.svc.cluster.local": "SERVFAIL", "web.prod.svc.cluster.local": "NOERROR A 10.96.0.10", "svc.cluster.local": "NOERROR"} {
		if got := ask(r, name, "A"); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	v.Synced()
	if got := ask(r, "db.prod.svc.cluster.local", "A"); got != "NXDOMAIN" {
		t.Errorf("afterwards: %s", got)
	}
}

func TestNearestEndpointsComeFirst(t *testing.T) {
	near := dns.ViewOptions{Node: lb.Node{Name: "n1", Zone: "a", Region: "r"}}
	at := func(address, node, zone, region string) lb.NamedEndpoint {
		return lb.NamedEndpoint{Addresses: addrs(address), Place: lb.Place{Node: node, Zone: zone, Region: region}, Is: lb.IsReady}
	}
	s := named("prod", "db")
	s.Headless = true
	s.Slices = []*lb.NamedSlice{slice("", tcp("sql", 1),
		at("10.0.0.4", "n4", "c", "other"), at("10.0.0.3", "n3", "b", "r"), at("10.0.0.22", "n2", "a", "r"), at("10.0.0.21", "n2", "a", "r"), at("10.0.0.1", "n1", "a", "r"), at("10.0.0.5", "", "", ""))}
	for selection, want := range map[lb.NameSelection][]string{
		lb.NamesOrdered: {"10.0.0.1", "10.0.0.21 10.0.0.22", "10.0.0.3", "10.0.0.4 10.0.0.5"},
		lb.NamesPrefer:  {"10.0.0.1"},
		lb.NamesPin:     {"10.0.0.1", "10.0.0.21 10.0.0.22"},
	} {
		s.Selection = selection
		r := responder(dns.Options{}, near, s)
		for range 20 {
			m := r.Serve(context.Background(), query("db.prod.svc.cluster.local", "A"), dns.Client{})
			var got []string
			for _, rr := range m.Answer {
				got = append(got, rr.(*wire.A).A.String())
			}
			for _, tier := range want {
				n := len(strings.Fields(tier))
				if len(got) < n {
					t.Fatalf("%s: %d records too few: %v", selection, n-len(got), m.Answer)
				}
				part := slices.Sorted(slices.Values(got[:n]))
				if strings.Join(part, " ") != tier {
					t.Fatalf("%s: got %v where %s should be", selection, part, tier)
				}
				got = got[n:]
			}
			if len(got) > 0 {
				t.Fatalf("%s: %v besides", selection, got)
			}
		}
	}
	s.Selection = lb.NamesPin
	r := responder(dns.Options{}, dns.ViewOptions{Node: lb.Node{Name: "n9", Zone: "z"}}, s)
	for name, want := range map[string]string{"db.prod.svc.cluster.local": "NOERROR", "_sql._tcp.db.prod.svc.cluster.local": "NOERROR", "_no._tcp.db.prod.svc.cluster.local": "NXDOMAIN"} {
		if got := ask(r, name, "SRV"); got != want {
			t.Errorf("pinned to a zone without endpoints, %s: %s, want %s", name, got, want)
		}
	}
}

// Without a wish for an order every endpoint is sometimes the first, however near it is.
func TestEndpointsAreInAnyOrder(t *testing.T) {
	s := named("prod", "db")
	s.Headless = true
	var all []lb.NamedEndpoint
	for i, node := range []string{"n1", "n2", "n1", "n2"} {
		all = append(all, lb.NamedEndpoint{Addresses: addrs(fmt.Sprintf("10.0.0.%d", i)), Place: lb.Place{Node: node}, Is: lb.IsReady})
	}
	s.Slices = []*lb.NamedSlice{slice("", tcp("sql", 1), all...)}
	r := responder(dns.Options{}, dns.ViewOptions{Node: lb.Node{Name: "n1"}}, s)
	for _, qtype := range []string{"A", "SRV"} {
		first := map[string]bool{}
		for range 1000 { // four in 2^400 runs miss one
			m := r.Serve(context.Background(), query("db.prod.svc.cluster.local", qtype), dns.Client{TCP: true})
			first[m.Answer[0].String()] = true
		}
		if len(first) != 4 {
			t.Errorf("%s: first are %v", qtype, first)
		}
	}
}

func TestNamesOfAZoneAreThoseOfCoreDNS(t *testing.T) {
	s := named("prod", "db")
	s.Headless = true
	s.Slices = []*lb.NamedSlice{slice("", tcp("sql", 1),
		lb.NamedEndpoint{Addresses: addrs("10.0.0.1"), Place: lb.Place{Zone: "eu.A"}, Is: lb.IsReady},
		lb.NamedEndpoint{Addresses: addrs("10.0.0.2"), Place: lb.Place{Zone: "eu.b"}, Is: lb.IsReady})}
	r := responder(dns.Options{Zonal: true}, dns.ViewOptions{}, append(cluster()[:1], s)...)
	for name, want := range map[string]string{
		"eu.a.pin._zone.db.prod.svc.cluster.local":     "NOERROR A 10.0.0.1",
		"eu.c.pin._zone.db.prod.svc.cluster.local":     "NOERROR",
		"eu.b.prefer._zone.db.prod.svc.cluster.local":  "NOERROR A 10.0.0.2",
		"eu.c.prefer._zone.db.prod.svc.cluster.local":  "NOERROR A 10.0.0.1 A 10.0.0.2",
		"eu.a.other._zone.db.prod.svc.cluster.local":   "NXDOMAIN",
		"eu.a.pin._zone.web.prod.svc.cluster.local":    "NXDOMAIN",
		"eu.a.pin._zone.nobody.prod.svc.cluster.local": "NXDOMAIN",
	} {
		if got := ask(r, name, "A"); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	off := responder(dns.Options{}, dns.ViewOptions{}, s)
	if got := ask(off, "eu.a.pin._zone.db.prod.svc.cluster.local", "A"); got != "NXDOMAIN" {
		t.Errorf("not asked for: %s", got)
	}
}

func TestOtherTypesOfANameThatExistsHaveNoRecords(t *testing.T) {
	r := responder(dns.Options{ReverseZones: []string{"in-addr.arpa"}}, dns.ViewOptions{}, cluster()...)
	for name, want := range map[string]string{"10.0.96.10.in-addr.arpa": "NOERROR", "11.1.244.10.in-addr.arpa": "NXDOMAIN", "in-addr.arpa": "NOERROR"} {
		for _, qtype := range []string{"A", "TXT", "SRV"} {
			if got := ask(r, name, qtype); got != want {
				t.Errorf("%s %s: got %s, want %s", name, qtype, got, want)
			}
		}
	}
}

// A headless Service with slices of addresses and of a name that fails: in whichever order they come, a failure carries no records.
func TestAFailureCarriesNoRecords(t *testing.T) {
	mixed := named("prod", "mixed")
	mixed.Headless = true
	mixed.Slices = []*lb.NamedSlice{slice("a", tcp("sql", 1), elsewhere("silent.example.com")), slice("b", tcp("sql", 1), ready("10.244.1.9", ""))}
	r := responder(dns.Options{Forwarder: dns.NewForwarder(outside{})}, dns.ViewOptions{}, mixed)
	seen := map[int]bool{}
	for range 100 {
		m := r.Serve(context.Background(), query("mixed.prod.svc.cluster.local", "A"), dns.Client{TCP: true})
		if seen[m.Rcode] = true; m.Rcode == wire.RcodeServerFailure && len(m.Answer)+len(m.Extra) > 0 {
			t.Fatalf("got %v", m)
		}
	}
	if !seen[wire.RcodeServerFailure] {
		t.Error("no failure was seen")
	}
}

func TestASliceOfNamesHasOneCNAME(t *testing.T) {
	s := named("prod", "many")
	s.Headless = true
	s.Slices = []*lb.NamedSlice{lb.NewNamedSlice("", nil, elsewhere("a.example.com"), elsewhere("b.example.com"))}
	r := responder(dns.Options{}, dns.ViewOptions{}, s)
	for range 10 {
		if got := ask(r, "many.prod.svc.cluster.local", "A"); got != "NOERROR CNAME a.example.com." && got != "NOERROR CNAME b.example.com." {
			t.Fatalf("got %s", got)
		}
	}
}

// A view whose Services came, changed and went again is as one that never had them.
func TestNamesOfServicesThatWentAreGone(t *testing.T) {
	v := dns.NewView(dns.ViewOptions{})
	r := dns.NewResponder(v, dns.Options{Zones: []string{"cluster.local"}, ReverseZones: []string{"in-addr.arpa"}, Pods: dns.PodsVerified})
	v.Synced()
	for _, s := range cluster() {
		v.Set(s)
		v.Set(s)
	}
	pod := lb.NamedPod{Name: lb.PodName{Namespace: "prod", Name: "p"}, Addresses: addrs("10.244.9.9")}
	v.SetPod(pod)
	for _, s := range cluster() {
		v.Remove(s.Name)
	}
	if got := ask(r, "10-244-9-9.prod.pod.cluster.local", "A"); got != "NOERROR A 10.244.9.9" {
		t.Errorf("the pod: %s", got)
	}
	v.RemovePod(pod.Name)
	for _, name := range []string{"prod.svc.cluster.local", "web.prod.svc.cluster.local", "10.0.96.10.in-addr.arpa", "1.244.10.in-addr.arpa", "10-244-9-9.prod.pod.cluster.local"} {
		if got := ask(r, name, "PTR"); got != "NXDOMAIN" {
			t.Errorf("%s: %s", name, got)
		}
	}
}
