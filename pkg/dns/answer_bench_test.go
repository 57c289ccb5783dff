// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// many is a Service with n ready endpoints on ten nodes of two zones, without hostnames.
func many(name string, n int) *lb.NamedService {
	s := named("prod", name)
	s.Ports = []lb.NamedPort{tcp("http", 80)}
	var all []lb.NamedEndpoint
	for i := range n {
		e := ready(fmt.Sprintf("10.%d.%d.%d", len(name), i/250, i%250+1), "")
		e.Node, e.Zone = "n"+strconv.Itoa(i%10), string("ab"[i%2])
		all = append(all, e)
	}
	s.Slices = []*lb.NamedSlice{slice(name, tcp("http", 8080), all...)}
	return s
}

// BenchmarkAnswer is the whole way from a parsed query to the message that is sent, without packing it: of a ClusterIP, of headless Services
// of ten and of a thousand endpoints, without and with a preference, and of one endpoint's own names.
func BenchmarkAnswer(b *testing.B) {
	web := many("web", 10)
	web.ClusterIPs = addrs("10.96.0.10", "fd00:96::10")
	services := []*lb.NamedService{web}
	for _, n := range []int{10, 1000} {
		plain, ordered := many(fmt.Sprintf("plain-%d", n), n), many(fmt.Sprintf("ordered-%d", n), n)
		plain.Headless, ordered.Headless, ordered.Selection = true, true, lb.NamesOrdered
		services = append(services, plain, ordered)
	}
	r := responder(dns.Options{ReverseZones: []string{"in-addr.arpa"}}, dns.ViewOptions{Node: lb.Node{Name: "n1", Zone: "a"}}, services...)
	for _, row := range []struct{ name, qtype string }{
		{"web.prod.svc.cluster.local", "A"}, {"_http._tcp.web.prod.svc.cluster.local", "SRV"}, {"www.example.com.prod.svc.cluster.local", "A"},
		{"plain-10.prod.svc.cluster.local", "A"}, {"plain-10.prod.svc.cluster.local", "SRV"}, {"ordered-10.prod.svc.cluster.local", "A"},
		{"plain-1000.prod.svc.cluster.local", "A"}, {"ordered-1000.prod.svc.cluster.local", "A"},
		{"10-8-0-7.plain-10.prod.svc.cluster.local", "A"}, {"10-10-3-7.plain-1000.prod.svc.cluster.local", "A"},
		{"10.0.96.10.in-addr.arpa", "PTR"}, {"7.0.8.10.in-addr.arpa", "PTR"}, {"7.3.10.10.in-addr.arpa", "PTR"},
	} {
		q := query(row.name, row.qtype)
		b.Run(row.name+"/"+row.qtype, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if m := r.Serve(context.Background(), q, dns.Client{TCP: true}); m.Rcode == wire.RcodeSuccess && len(m.Answer) == 0 {
					b.Fatal(m)
				}
			}
		})
	}
}

// BenchmarkSet puts a Service of ten or a thousand endpoints in force, of which one comes or goes, beside 10,000 others of ten.
func BenchmarkSet(b *testing.B) {
	v := dns.NewView(dns.ViewOptions{})
	for i := range 10000 {
		s := named("prod", fmt.Sprintf("s%d", i))
		var all []lb.NamedEndpoint
		for j := range 10 {
			all = append(all, ready(fmt.Sprintf("10.%d.%d.%d", 100+i/6250, i/25%250, i%25*10+j+1), ""))
		}
		s.Slices = []*lb.NamedSlice{slice(s.Name.Name, tcp("http", 8080), all...)}
		v.Set(s)
	}
	for _, n := range []int{10, 1000} {
		states := []*lb.NamedService{many("s", n), many("s", n-1)}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				v.Set(states[i%2])
			}
		})
	}
}

// BenchmarkRecords lists the names of 10,000 Services of ten endpoints, as `nearlb dns names` asks an agent to.
func BenchmarkRecords(b *testing.B) {
	var all []*lb.NamedService
	for i := range 10000 {
		s := named("prod", fmt.Sprintf("s%d", i))
		s.ClusterIPs, s.Ports = addrs(fmt.Sprintf("10.96.%d.%d", i/250, i%250)), []lb.NamedPort{tcp("http", 80)}
		var endpoints []lb.NamedEndpoint
		for j := range 10 {
			endpoints = append(endpoints, ready(fmt.Sprintf("10.%d.%d.%d", 100+i/6250, i/25%250, i%25*10+j+1), ""))
		}
		s.Slices = []*lb.NamedSlice{slice(s.Name.Name, tcp("http", 8080), endpoints...)}
		all = append(all, s)
	}
	r := responder(dns.Options{}, dns.ViewOptions{}, all...)
	for b.Loop() {
		n := 0
		for range r.Records(b.Context()) {
			n++
		}
		if n != 220000 {
			b.Fatalf("%d records", n)
		}
	}
}
