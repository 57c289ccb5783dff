// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"fmt"
	"testing"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// crowd is a headless Service with n endpoints that have hostnames.
func crowd(n int) *lb.NamedService {
	s := named("prod", "crowd")
	s.Headless = true
	var all []lb.NamedEndpoint
	for i := range n {
		all = append(all, ready(fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), fmt.Sprintf("member-%d", i)))
	}
	s.Slices = []*lb.NamedSlice{slice("", tcp("http", 80), all...)}
	return s
}

func TestAnswersFitTheirClients(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{}, crowd(60))
	for _, row := range []struct {
		name      string
		size      uint16 // of EDNS; 0: none
		tcp       bool
		least     int
		truncated bool
	}{
		{"without EDNS", 0, false, 20, true},
		{"a size below 512 counts as 512", 100, false, 20, true},
		{"compressed", 1232, false, 60, false},
		{"roomy", 4096, false, 60, false},
		{"TCP", 0, true, 60, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			q := query("crowd.prod.svc.cluster.local", "A")
			limit := wire.MinMsgSize
			if row.size > 0 {
				q.SetEdns0(row.size, true)
				limit = max(limit, int(row.size))
			}
			m := r.Serve(context.Background(), q, dns.Client{TCP: row.tcp})
			packed, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Answer) < row.least || m.Truncated != row.truncated || !row.tcp && len(packed) > limit {
				t.Errorf("%d records, truncated %v, %d bytes", len(m.Answer), m.Truncated, len(packed))
			}
			if row.truncated && len(m.Answer) == 60 {
				t.Error("truncated, and all there")
			}
			if edns := m.IsEdns0(); (edns != nil) != (row.size > 0) || edns != nil && (!edns.Do() || edns.Version() != 0) {
				t.Errorf("EDNS %v", edns)
			}
		})
	}
}

// A client may take more than UDP carries: it gets what UDP does.
func TestNoAnswerIsLargerThanADatagram(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{}, crowd(5000))
	q := query("crowd.prod.svc.cluster.local", "A")
	q.SetEdns0(65535, false)
	m := r.Serve(context.Background(), q, dns.Client{})
	if packed, err := m.Pack(); err != nil || len(packed) > 65507 || !m.Truncated || len(m.Answer) < 4000 {
		t.Errorf("%d records, truncated %v, %d bytes, %v", len(m.Answer), m.Truncated, len(packed), err)
	}
}

func TestOddQueriesAreRefused(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{}, cluster()...)
	for _, row := range []struct {
		name   string
		change func(*wire.Msg)
		want   int
	}{
		{"no question", func(m *wire.Msg) { m.Question = nil }, wire.RcodeServerFailure},
		{"another class", func(m *wire.Msg) { m.Question[0].Qclass = wire.ClassCHAOS }, wire.RcodeRefused},
		{"a later version of EDNS", func(m *wire.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) }, wire.RcodeBadVers},
		{"an option nobody knows", func(m *wire.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []wire.EDNS0{&wire.EDNS0_LOCAL{Code: 65001, Data: []byte("x")}}
		}, wire.RcodeSuccess},
	} {
		t.Run(row.name, func(t *testing.T) {
			q := query("web.prod.svc.cluster.local", "A")
			row.change(q)
			m := r.Serve(context.Background(), q, dns.Client{})
			packed, err := m.Pack()
			if err != nil {
				t.Fatal(err)
			}
			var got wire.Msg
			if err := got.Unpack(packed); err != nil {
				t.Fatal(err)
			}
			if got.Rcode != row.want || got.Id != q.Id || !got.Response || got.RecursionAvailable || !got.RecursionDesired {
				t.Errorf("got %v", &got)
			}
			if edns := got.IsEdns0(); edns != nil && (len(edns.Option) > 0 || edns.Version() != 0) {
				t.Errorf("EDNS %v", edns)
			}
		})
	}
}

// FuzzServe holds that no message, however odd, ends the responder, and that an answer can be sent.
func FuzzServe(f *testing.F) {
	r := responder(dns.Options{ReverseZones: []string{"in-addr.arpa", "ip6.arpa"}, Pods: dns.PodsInsecure, Zonal: true}, dns.ViewOptions{}, cluster()...)
	for _, name := range []string{"web.prod.svc.cluster.local", "_http._tcp.web.prod.svc.cluster.local", "10.0.96.10.in-addr.arpa", "fd00--3.prod.pod.cluster.local", "."} {
		for _, qtype := range []string{"A", "SRV", "PTR", "ANY"} {
			packed, err := query(name, qtype).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(packed)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q := new(wire.Msg)
		if q.Unpack(data) != nil {
			return
		}
		for _, from := range []dns.Client{{}, {TCP: true}, {IP6: true}} {
			m := r.Serve(context.Background(), q.Copy(), from)
			if _, err := m.Pack(); err != nil {
				t.Errorf("%v: pack %v: %v", q, m, err)
			}
		}
	})
}
