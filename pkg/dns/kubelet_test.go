// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

func parsed(text string) dns.ResolvConf {
	c, err := dns.ParseResolvConf(text)
	if err != nil {
		panic(err)
	}
	return c
}

var kubelet = dns.Kubelet{Zone: "cluster.local", ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
	Node: parsed("# node's\ndomain old.example\nsearch node.example. .\nnameserver 192.0.2.53\noptions timeout:1 edns0 timeout:2\ndomain late.example\noptions timeout:3 rotate\n")}

func pod(w lb.PodWishes) lb.NamedPod {
	return lb.NamedPod{Name: lb.PodName{Namespace: "prod", Name: "cart-0"}, Wishes: &w}
}

func TestTheKubeletsRules(t *testing.T) {
	const (
		cluster = "search prod.svc.cluster.local svc.cluster.local cluster.local node.example\nnameserver 10.96.0.10\noptions ndots:5\n"
		node    = "search node.example\nnameserver 192.0.2.53\noptions timeout:3 edns0 rotate\n"
	)
	for _, row := range []struct {
		rule, want, problem string
		pod                 lb.PodWishes
	}{
		{"D2, D18: ClusterFirst is the default", cluster, "", lb.PodWishes{}},
		{"D18: Default", node, "", lb.PodWishes{Policy: "Default"}},
		{"D20: hostNetwork and ClusterFirst", node, "ClusterFirst is Default", lb.PodWishes{Policy: "ClusterFirst", HostNetwork: true}},
		{"D18: ClusterFirstWithHostNet", cluster, "", lb.PodWishes{Policy: "ClusterFirstWithHostNet", HostNetwork: true}},
		{"D21: None without name servers", "", "wants one or more", lb.PodWishes{Policy: "None"}},
		{"D22, D23: None", "search a.example\nnameserver 192.0.2.1\nnameserver 2001:db8::1\noptions ndots:2 edns0\n", "",
			lb.PodWishes{Policy: "None", Nameservers: []string{"192.0.2.1", "2001:db8::1"}, Searches: []string{"a.example"}, Options: []string{"ndots:2", "edns0"}}},
		{"D21: dnsConfig is merged, without what is there", "search prod.svc.cluster.local svc.cluster.local cluster.local node.example a.example\n" +
			"nameserver 10.96.0.10\nnameserver 192.0.2.1\noptions ndots:2 edns0\n", "",
			lb.PodWishes{Nameservers: []string{"10.96.0.10", "192.0.2.1"}, Searches: []string{"svc.cluster.local", "a.example"}, Options: []string{"ndots:2", "edns0"}}},
		{"D21: a name server that is no address", "nameserver resolver\n", "nameservers \"resolver\": want an IP address",
			lb.PodWishes{Policy: "None", Nameservers: []string{"resolver"}}},
		{"D21: a search domain that is none", "search a..b\nnameserver 192.0.2.1\n", "searches \"a..b\": want a domain name",
			lb.PodWishes{Policy: "None", Nameservers: []string{"192.0.2.1"}, Searches: []string{"a..b"}}},
		{"D21: the root as search domain", "search .\nnameserver 192.0.2.1\n", "", lb.PodWishes{Policy: "None", Nameservers: []string{"192.0.2.1"}, Searches: []string{"."}}},
		{"D22: ndots that is no number", "nameserver 192.0.2.1\noptions ndots:many\n", "options \"ndots:many\": want a number",
			lb.PodWishes{Policy: "None", Nameservers: []string{"192.0.2.1"}, Options: []string{"ndots:many"}}},
		{"an unknown policy", cluster, `"Nearest": want`, lb.PodWishes{Policy: "Nearest"}},
		{"an unknown policy with hostNetwork", cluster, `"Nearest": want`, lb.PodWishes{Policy: "Nearest", HostNetwork: true}},
	} {
		got := kubelet.NamesOf(pod(row.pod))
		if got.String() != row.want || strings.Contains(strings.Join(got.Problems, "\n"), row.problem) != true || (row.problem == "") != (len(got.Problems) == 0) {
			t.Errorf("%s: got %q, %q; want %q, %q", row.rule, got.String(), got.Problems, row.want, row.problem)
		}
	}
	nobody := dns.Kubelet{Zone: "cluster.local", ClusterDNS: kubelet.ClusterDNS, Nobody: true}
	if got := nobody.NamesOf(pod(lb.PodWishes{Policy: "Default"})).String(); got != "search .\nnameserver 127.0.0.1\n" {
		t.Errorf("resolvConf \"\": %q", got)
	}
	if got := nobody.NamesOf(pod(lb.PodWishes{})).String(); got != strings.Replace(cluster, " node.example", "", 1) {
		t.Errorf("resolvConf \"\" and ClusterFirst: %q", got)
	}
	if c, err := dns.ParseResolvConf("search a.example\nnameserver \n"); err == nil {
		t.Errorf("a name server without an address: %v", c)
	}
	if alone := (dns.Kubelet{Zone: "cluster.local", Node: kubelet.Node}).NamesOf(pod(lb.PodWishes{})); alone.String() != node || len(alone.Problems) != 1 {
		t.Errorf("without clusterDNS: %q, %q", alone.String(), alone.Problems)
	}
}

// maxSearches is the kubelet's (MaxDNSSearchPaths).
const maxSearches = 32

// D24, and the resolver's three name servers.
func TestTheKubeletWritesNoMoreThanResolversRead(t *testing.T) {
	w := lb.PodWishes{Policy: "None", Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}}
	for i := range 40 {
		w.Searches = append(w.Searches, fmt.Sprintf("d%02d.example", i))
	}
	got := kubelet.NamesOf(pod(w))
	if len(got.Nameservers) != 3 || len(got.Searches) != maxSearches || len(got.Problems) != 2 {
		t.Errorf("got %+v", got)
	}
	w.Searches = []string{strings.Repeat("x.", 127) + "example"}
	for i := range 20 {
		w.Searches = append(w.Searches, fmt.Sprintf("%s%02d", strings.Repeat("y.", 100), i))
	}
	got = kubelet.NamesOf(pod(w)) // the first has 261 characters, of the others ten have 2,029 with the spaces between them
	if len(got.Searches) != 10 || got.Searches[0] != w.Searches[1] {
		t.Errorf("%d searches: %q", len(got.Searches), got.Searches)
	}
	w.Searches = w.Searches[:1]
	for i := range maxSearches {
		w.Searches = append(w.Searches, fmt.Sprintf("d%02d.example", i))
	}
	got = kubelet.NamesOf(pod(w)) // one that is too long counts
	if len(got.Searches) != maxSearches-1 || got.Searches[30] != "d30.example" {
		t.Errorf("%d searches: %q", len(got.Searches), got.Searches)
	}
}

// D17.
func TestAPodIsCalledByItsNameUnlessItSaysOtherwise(t *testing.T) {
	long := strings.Repeat("x", 40)
	for _, row := range []struct {
		pod      lb.PodWishes
		want     string
		problems int
	}{
		{lb.PodWishes{}, "cart-0", 0},
		{lb.PodWishes{Hostname: "h", Subdomain: "sub"}, "h", 0},
		{lb.PodWishes{HostnameAsFQDN: true}, "cart-0", 0},
		{lb.PodWishes{Hostname: "h", Subdomain: "sub", HostnameAsFQDN: true}, "h.sub.prod.svc.cluster.local", 0},
		{lb.PodWishes{Hostname: long, Subdomain: "sub", HostnameAsFQDN: true}, long + ".sub.prod.svc.cluster.local", 1},
		{lb.PodWishes{Policy: "Default", HostNetwork: true, Hostname: long, Subdomain: "sub", HostnameAsFQDN: true}, "", 0}, // the node's
	} {
		if got := kubelet.NamesOf(pod(row.pod)); got.Hostname != row.want || len(got.Problems) != row.problems {
			t.Errorf("%+v: %q, %q", row.pod, got.Hostname, got.Problems)
		}
	}
}

func TestASearchListIsWalkedAsGlibcDoes(t *testing.T) {
	c := kubelet.NamesOf(pod(lb.PodWishes{Searches: []string{"."}})).ResolvConf
	below := []string{".prod.svc.cluster.local.", ".svc.cluster.local.", ".cluster.local.", ".node.example.", "."}
	for name, want := range map[string][]string{"www.example.com": {"www.example.com"}, "a.b.c.d.e.f": nil} {
		got := c.Walk(name)
		if want != nil && (len(got) != 6 || got[0] != "www.example.com"+below[0] || got[5] != "www.example.com.") {
			t.Errorf("%s: %q", name, got)
		}
		if want == nil && (len(got) != 6 || got[0] != name+".") {
			t.Errorf("%s has five dots: %q", name, got)
		}
	}
	if got := c.Walk("db.prod.svc.cluster.local."); !slices.Equal(got, []string{"db.prod.svc.cluster.local."}) {
		t.Errorf("absolute: %q", got)
	}
}
