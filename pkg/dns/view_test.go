// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// D16: what packets are about to lose has no name any more, and what they do not have yet has none either.
func TestAViewThatIsNarrowedHasWhatBothStatesHave(t *testing.T) {
	before, after := named("prod", "web"), named("prod", "web")
	before.ClusterIPs, after.ClusterIPs = addrs("10.96.0.10"), addrs("10.96.0.10")
	before.Slices = []*lb.NamedSlice{lb.NewNamedSlice("a", nil, ready("10.244.1.1", ""), ready("10.244.1.2", ""))}
	after.Slices = []*lb.NamedSlice{lb.NewNamedSlice("b", nil, ready("10.244.1.2", ""), ready("10.244.1.3", ""))}
	v := dns.NewView(dns.ViewOptions{})
	r := dns.NewResponder(v, dns.Options{Zones: []string{"cluster.local"}})
	v.Synced()
	want := func(state, have string) {
		t.Helper()
		for _, last := range []string{"1", "2", "3"} {
			m, _ := r.Answer(t.Context(), query("10-244-1-"+last+".web.prod.svc.cluster.local", "A"), dns.Client{})
			if got := len(m.Answer) == 1; got != strings.Contains(have, last) {
				t.Errorf("%s: 10.244.1.%s has a name: %v", state, last, got)
			}
		}
	}
	v.Narrow(after)
	want("before there is any", "")
	v.Set(before)
	want("before", "12")
	v.Narrow(after)
	want("between", "2")
	v.Set(after)
	want("after", "23")
}

func TestAServiceThatIsNotInForceIsNotDenied(t *testing.T) {
	v := dns.NewView(dns.ViewOptions{})
	r := dns.NewResponder(v, dns.Options{Zones: []string{"cluster.local"}})
	v.Synced()
	web := named("prod", "web")
	web.ClusterIPs = addrs("10.96.0.10")
	v.Doubt(web.Name)
	out := named("prod", "out")
	out.ExternalName = "web.prod.svc.cluster.local"
	v.Set(out)
	for _, row := range []struct{ name, want string }{
		{"out.prod.svc.cluster.local", "SERVFAIL"},
		{"web.prod.svc.cluster.local", "SERVFAIL"}, {"db-0.web.prod.svc.cluster.local", "SERVFAIL"},
		{"web.prod.svc.cluster.local.prod.svc.cluster.local", "NXDOMAIN"}, {"db.prod.svc.cluster.local", "NXDOMAIN"},
	} {
		if got := ask(r, row.name, "A"); !strings.HasPrefix(got, row.want) {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
	v.Set(web)
	if got := ask(r, "out.prod.svc.cluster.local", "A"); got != "NOERROR A 10.96.0.10 CNAME web.prod.svc.cluster.local." {
		t.Errorf("another name of it, in force: %s", got)
	}
	if got := ask(r, "web.prod.svc.cluster.local", "A"); got != "NOERROR A 10.96.0.10" {
		t.Errorf("in force: %s", got)
	}
	v.Doubt(web.Name) // the next state of it does not fit: it keeps its names
	if got := ask(r, "web.prod.svc.cluster.local", "A"); got != "NOERROR A 10.96.0.10" {
		t.Errorf("in force before: %s", got)
	}
	v.Remove(web.Name)
	v.Doubt(web.Name)
	v.Remove(web.Name)
	v.Remove(out.Name)
	if got := ask(r, "prod.svc.cluster.local", "A"); !strings.HasPrefix(got, "NXDOMAIN") {
		t.Errorf("its Namespace, when it is gone: %s", got)
	}
}

// A view shares the Services that it is told of. What it adds grows with the number of addresses alone, however they are spread: addresses
// of IPv6 that have little in common do not take a count for each name above them.
func TestAViewAddsLittleToItsServices(t *testing.T) {
	const services, endpoints, most = 2000, 10, 120
	random := rand.New(rand.NewPCG(1, 1))
	var all []*lb.NamedService
	for i := range services {
		s := named("prod", fmt.Sprintf("s%d", i))
		var six []lb.NamedEndpoint
		for range endpoints {
			var a [16]byte
			binary.BigEndian.PutUint64(a[:], 0xfd00<<48|random.Uint64()>>16)
			binary.BigEndian.PutUint64(a[8:], random.Uint64())
			six = append(six, lb.NamedEndpoint{Addresses: []netip.Addr{netip.AddrFrom16(a)}, Is: lb.IsReady})
		}
		s.Slices = []*lb.NamedSlice{slice("a", tcp("http", 80), six...)}
		all = append(all, s)
	}
	inUse := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	v, before := dns.NewView(dns.ViewOptions{}), inUse()
	for _, s := range all {
		v.Set(s)
	}
	if each := (inUse() - before) / (services * endpoints); each > most {
		t.Errorf("%d bytes for each endpoint, want %d at most", each, most)
	}
	runtime.KeepAlive(v)
	runtime.KeepAlive(all)
}

// TestRecordsAreListedWithoutAskingAnybody holds that a list of names neither waits for an upstream nor loses what leads outside where that
// does not answer.
func TestRecordsAreListedWithoutAskingAnybody(t *testing.T) {
	v := dns.NewView(dns.ViewOptions{})
	out := named("prod", "out")
	out.ExternalName = "silent.example.com"
	v.Set(out)
	v.Synced()
	r := dns.NewResponder(v, dns.Options{Zones: []string{"cluster.local"}, Forwarder: dns.NewForwarder(outside{})})
	want := []dns.Record{{Name: "out.prod.svc.cluster.local.", Type: "CNAME", Data: "silent.example.com."}}
	if got := slices.Collect(r.Records(t.Context())); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	for range 2 { // a list may be left early, and the view be written meanwhile
		for range r.Records(t.Context()) {
			v.Remove(out.Name)
			break
		}
	}
}

// A Service that was deleted and made again may come as one change: with another ClusterIP, as another kind, or without a Service. What the
// tables are about to lose is answered no more, and neither denied nor said to have no addresses, while the Service exists.
func TestAServiceThatBecomesAnotherOneIsInDoubtBetween(t *testing.T) {
	clusterIPs := func(texts ...string) *lb.NamedService {
		s := named("prod", "web")
		s.ClusterIPs = addrs(texts...)
		s.Slices = []*lb.NamedSlice{lb.NewNamedSlice("a", nil, ready("10.244.1.1", "web-0"))}
		return s
	}
	headless, external, unserved := clusterIPs(), clusterIPs(), clusterIPs()
	headless.Headless, external.ExternalName, unserved.Unserved = true, "www.example.com", true
	const own, reverse = "web.prod.svc.cluster.local", "20.0.96.10.in-addr.arpa"
	for _, row := range []struct {
		name                   string
		before, next           *lb.NamedService
		between, its, backends string // of the Service's name, of its ClusterIP's, of its endpoint's
	}{
		{"another ClusterIP", clusterIPs("10.96.0.20"), clusterIPs("10.96.0.21"), "SERVFAIL", "NXDOMAIN", "SERVFAIL"},
		{"one family less", clusterIPs("10.96.0.20", "fd00:96::20"), clusterIPs("10.96.0.20"), "NOERROR A 10.96.0.20", "NOERROR PTR " + own + ".", "NOERROR A 10.244.1.1"},
		{"the first family less", clusterIPs("10.96.0.20", "fd00:96::20"), clusterIPs("fd00:96::20"), "NOERROR", "NXDOMAIN", "NOERROR A 10.244.1.1"},
		{"headless", clusterIPs("10.96.0.20"), headless, "SERVFAIL", "NXDOMAIN", "SERVFAIL"},
		{"another name", clusterIPs("10.96.0.20"), external, "SERVFAIL", "NXDOMAIN", "SERVFAIL"},
		{"no Service", clusterIPs("10.96.0.20"), unserved, "NXDOMAIN", "NXDOMAIN", "NXDOMAIN"},
		{"headless before", headless, clusterIPs("10.96.0.20"), "SERVFAIL", "NXDOMAIN", "SERVFAIL"},
		{"headless, and still", headless, headless, "NOERROR A 10.244.1.1", "NXDOMAIN", "NOERROR A 10.244.1.1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := dns.NewView(dns.ViewOptions{})
			r := dns.NewResponder(v, dns.Options{Zones: []string{"cluster.local"}, ReverseZones: []string{"in-addr.arpa"}})
			v.SetNamespace("prod", true)
			v.Synced()
			v.Set(row.before)
			v.Narrow(row.next)
			for name, want := range map[string]string{own: row.between, "web-0." + own: row.backends} {
				if got := ask(r, name, "A"); got != want {
					t.Errorf("between: %s: %s, want %s", name, got, want)
				}
			}
			if got := ask(r, reverse, "PTR"); got != row.its {
				t.Errorf("between: %s: %s, want %s", reverse, got, row.its)
			}
			v.Set(row.next)
			if got := ask(r, own, "A"); strings.HasPrefix(got, "SERVFAIL") && row.next != external {
				t.Errorf("after: %s", got)
			}
			v.Remove(row.next.Name)
			if got := ask(r, own, "A"); !strings.HasPrefix(got, "NXDOMAIN") {
				t.Errorf("in the end: %s", got)
			}
		})
	}
}
