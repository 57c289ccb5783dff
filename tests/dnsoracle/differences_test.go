// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	wire "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/pkg/dns"
)

// difference is one that is meant: a row of docs/dns.md has its name, and says why.
type difference struct {
	name  string
	asked string // shows it, about the cluster of example
	qtype uint16
	is    func(q wire.Question, theirs, ours *wire.Msg) bool
}

// zeros is a difference of verified names alone.
const zeros = "pod's address with zeros"

var differences = []difference{
	{"ExternalName that leads nowhere", "out.prod.svc.cluster.local", wire.TypeA, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return isAddress(q) && none(theirs, wire.RcodeSuccess) && only(ours, wire.TypeCNAME)
	}},
	{"ExternalName outside that fails", "failing.prod.svc.cluster.local", wire.TypeA, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return isAddress(q) && only(theirs, wire.TypeCNAME) && none(ours, wire.RcodeServerFailure)
	}},
	{"reverse name without PTR", "244.10.in-addr.arpa", wire.TypePTR, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return isReverse(q) && missing(theirs) && none(ours, wire.RcodeSuccess)
	}},
	{"labels left of a reverse name", "x.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.4.4.2.0.0.0.d.f.ip6.arpa", wire.TypePTR, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return isReverse(q) && wire.CountLabel(q.Name) > 34 && only(theirs, wire.TypePTR) && missing(ours)
	}},
	{"TXT of a node", "svc.cluster.local", wire.TypeTXT, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return q.Qtype == wire.TypeTXT && !isReverse(q) && missing(theirs) && none(ours, wire.RcodeSuccess)
	}},
	{"other types of dns-version and ns.dns", "dns-version.cluster.local", wire.TypeA, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return (isNamed(q, "dns-version.") || isNamed(q, "ns.dns.")) && missing(theirs) && none(ours, wire.RcodeSuccess)
	}},
	{"name servers in capitals", "CLUSTER.local", wire.TypeNS, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return isServer(q) && q.Name != strings.ToLower(q.Name) && len(theirs.Answer) == 0 && ours.Rcode == wire.RcodeSuccess
	}},
	{"name servers of several slices", "cluster.local", wire.TypeNS, func(q wire.Question, theirs, ours *wire.Msg) bool {
		told := lines(ours)
		return isServer(q) && theirs.Rcode == wire.RcodeSuccess && len(ours.Answer) > 0 && !slices.ContainsFunc(lines(theirs), func(line string) bool {
			return !strings.HasPrefix(line, "authority ") && !slices.Contains(told, line)
		})
	}},
	{zeros, "fd00-244-1--0.prod.pod.cluster.local", wire.TypeAAAA, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return strings.Contains(strings.ToLower(q.Name), "-0.") && strings.Contains(strings.ToLower(q.Name), ".pod.") && missing(theirs) && ours.Rcode == wire.RcodeSuccess
	}},
	{"SOA of a name that does not exist", "nobody.prod.svc.cluster.local", wire.TypeSOA, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return q.Qtype == wire.TypeSOA && none(theirs, wire.RcodeSuccess) && missing(ours)
	}},
	{"SRV of a pod", "10-244-1-1.prod.pod.cluster.local", wire.TypeSRV, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return q.Qtype == wire.TypeSRV && strings.Contains(strings.ToLower(q.Name), ".pod.") && only(theirs, wire.TypeSRV) &&
			theirs.Answer[0].(*wire.SRV).Port == 0 && none(ours, wire.RcodeSuccess)
	}},
	{"several names in slices of type FQDN", "x.prod.svc.cluster.local", wire.TypeA, func(q wire.Question, theirs, ours *wire.Msg) bool {
		return aliases(theirs) > 0 && aliases(ours) == 1
	}},
}

func isAddress(q wire.Question) bool { return q.Qtype == wire.TypeA || q.Qtype == wire.TypeAAAA }

func isReverse(q wire.Question) bool { return strings.HasSuffix(strings.ToLower(q.Name), ".arpa.") }

// missing is the answer to a name that does not exist, or that nothing is known of yet.
func missing(m *wire.Msg) bool {
	return none(m, wire.RcodeNameError) || none(m, wire.RcodeServerFailure)
}

func isServer(q wire.Question) bool {
	return isNamed(q, "ns.dns.") || q.Qtype == wire.TypeNS && (isNamed(q, "") || isReverse(q))
}

func isNamed(q wire.Question, prefix string) bool {
	return strings.EqualFold(q.Name, prefix+"cluster.local.")
}

// none is an answer without records.
func none(m *wire.Msg, rcode int) bool { return m != nil && m.Rcode == rcode && len(m.Answer) == 0 }

// only is an answer with records of one type alone.
func only(m *wire.Msg, qtype uint16) bool {
	return m.Rcode == wire.RcodeSuccess && len(m.Answer) > 0 &&
		!slices.ContainsFunc(m.Answer, func(rr wire.RR) bool { return rr.Header().Rrtype != qtype })
}

// aliases counts the CNAMEs of Services x, whose slices have names.
func aliases(m *wire.Msg) (n int) {
	for _, rr := range m.Answer {
		if rr.Header().Rrtype == wire.TypeCNAME && strings.Contains("."+strings.ToLower(rr.Header().Name), ".x.") {
			n++
		}
	}
	return n
}

// meant names the difference that two answers are; "" is none.
func meant(q wire.Question, theirs, ours *wire.Msg) string {
	for _, d := range differences {
		if theirs != nil && ours != nil && d.is(q, theirs, ours) {
			return d.name
		}
	}
	return ""
}

// example shows every difference.
func example(pods dns.PodRecords) (s setup, all []runtime.Object) {
	s = setup{Options: dns.Options{Zones: []string{"cluster.local"}, ReverseZones: []string{"in-addr.arpa", "ip6.arpa"}, Pods: pods, TTL: 5,
		OwnAddresses: []netip.Addr{netip.MustParseAddr("10.244.1.1")}}, upstream: true}
	of := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "prod", Name: name}
	}
	for name, target := range map[string]string{"out": "nobody.prod.svc.cluster.local", "failing": "failing.example.com"} {
		all = append(all, &corev1.Service{ObjectMeta: of(name), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target}})
	}
	for _, name := range []string{"db", "x"} {
		all = append(all, &corev1.Service{ObjectMeta: of(name), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}}})
	}
	slice := func(name, service string, kind discoveryv1.AddressType, address string) {
		s := &discoveryv1.EndpointSlice{ObjectMeta: of(name), AddressType: kind, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		all = append(all, s)
	}
	slice("db-a", "db", discoveryv1.AddressTypeIPv4, "10.244.1.1")
	slice("db-b", "db", discoveryv1.AddressTypeIPv4, "10.244.1.2")
	slice("db-c", "db", discoveryv1.AddressTypeIPv6, "fd00:244::1")
	all = append(all, &corev1.Pod{ObjectMeta: of("pod"), Status: corev1.PodStatus{PodIP: "fd00:244:1::", PodIPs: []corev1.PodIP{{IP: "fd00:244:1::"}}}})
	slice("x-a", "x", discoveryv1.AddressTypeFQDN, "www.example.com")
	slice("x-b", "x", discoveryv1.AddressTypeFQDN, "missing.example.com")
	return s, append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod"}})
}

// What is no difference any more is to go from the table and from docs/dns.md.
func TestEveryDifferenceIsThereStill(t *testing.T) {
	page, err := os.ReadFile("../../docs/dns.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Run(d.name, func(t *testing.T) {
			pods := dns.PodsInsecure
			if d.name == zeros {
				pods = dns.PodsVerified
			}
			s, objects := example(pods)
			theirs, ours := startCoreDNS(t, t.TempDir(), s, true, objects...), startNearlb(t, s, true, objects...)
			if !strings.Contains(string(page), "\n| "+d.name+" |") {
				t.Error("docs/dns.md does not list it")
			}
			m := new(wire.Msg)
			m.SetQuestion(wire.Fqdn(d.asked), d.qtype)
			want, got := theirs.answer(m, transport{tcp: true}), askNearlb(ours, m, transport{tcp: true})
			if same(want, got) || !d.is(m.Question[0], want, got) {
				t.Errorf("CoreDNS says\n%s\nand nearlb\n%s", strings.Join(lines(want), "\n"), strings.Join(lines(got), "\n"))
			}
		})
	}
}
