// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	wire "github.com/miekg/dns"
)

// question is one message and how it comes.
type question struct {
	message *wire.Msg
	from    transport
}

func (q question) String() string {
	asked := q.message.Question[0]
	return fmt.Sprintf("%s %s (%+v, EDNS %v)", asked.Name, wire.Type(asked.Qtype), q.from, q.message.IsEdns0() != nil)
}

var questionTypes = []uint16{wire.TypeA, wire.TypeA, wire.TypeA, wire.TypeAAAA, wire.TypeAAAA, wire.TypeSRV, wire.TypeSRV, wire.TypePTR, wire.TypeCNAME,
	wire.TypeTXT, wire.TypeSOA, wire.TypeNS, wire.TypeMX, wire.TypeANY, wire.TypeHTTPS, wire.TypeDS, wire.TypeAXFR, wire.TypeIXFR}

// asker draws questions, the same ones for the same seed.
type asker struct{ *rand.Rand }

func newAsker(seed uint64) asker { return asker{rand.New(rand.NewPCG(seed, 0))} }

func (r asker) of(all ...string) string { return all[r.IntN(len(all))] }

// question draws one about a name that exists, or that nearly does.
func (r asker) question() question {
	m := new(wire.Msg)
	name := r.spelled(r.name())
	m.SetQuestion(wire.Fqdn(name), questionTypes[r.IntN(len(questionTypes))])
	if strings.HasSuffix(strings.ToLower(name), ".arpa") && r.IntN(2) == 0 {
		m.Question[0].Qtype = wire.TypePTR
	}
	m.RecursionDesired, m.CheckingDisabled = r.IntN(4) > 0, r.IntN(8) == 0
	if r.IntN(2) == 0 {
		m.SetEdns0([]uint16{0, 512, 1232, 4096, 65535}[r.IntN(5)], r.IntN(2) == 0)
	}
	return question{m, transport{tcp: r.IntN(2) == 0, ip6: r.IntN(2) == 0}}
}

// spelled is sometimes in other letters (0x20).
func (r asker) spelled(name string) string {
	if r.IntN(3) > 0 {
		return name
	}
	out := []byte(name)
	for i, c := range out {
		if 'a' <= c && c <= 'z' && r.IntN(2) == 0 {
			out[i] = c - 'a' + 'A'
		}
	}
	return string(out)
}

func (r asker) name() string {
	switch r.IntN(16) {
	case 0:
		return r.of("cluster.local", "svc.cluster.local", "pod.cluster.local", "x.cluster.local", "dns-version.cluster.local", "ns.dns.cluster.local",
			"dns.cluster.local", "dns-version.svc.cluster.local", "*.cluster.local", "any.svc.cluster.local", "local", "xcluster.local")
	case 1:
		return r.of(outsideNames...)
	case 2, 3:
		return r.reverse()
	}
	labels := []string{r.of(append([]string{"nowhere", "*", "default"}, namespaces...)...), r.of("svc", "svc", "svc", "svc", "svc", "pod", "pod", "xyz"), "cluster.local"}
	if r.IntN(12) > 0 {
		service := r.of(append([]string{"nothing", "*", "any"}, serviceNames...)...)
		if labels[1] == "pod" {
			service = r.address()
		}
		labels = append([]string{service}, labels...)
		if r.IntN(2) > 0 {
			labels = append(r.below(), labels...)
		}
	}
	return strings.Join(labels, ".")
}

// below are labels left of a Service's name.
func (r asker) below() []string {
	port := func() string { return r.of(append([]string{"", "nobody"}, portNames...)...) }
	switch r.IntN(8) {
	case 0, 1:
		return []string{r.of(append([]string{"pod-0", "nobody", "_tcp", longName[:63]}, hostnames...)...)}
	case 2:
		return []string{r.address()}
	case 3, 4:
		return []string{"_" + port(), r.of("_tcp", "_udp", "_sctp", "_xyz", "tcp", "_")}
	case 5:
		return []string{r.of("http", "_http", "db-0", "__http"), r.of("tcp", "__tcp", "a", "_udp")}
	case 6:
		return []string{r.of("a", "b", "eu.west", "west", "nowhere"), r.of("pin", "prefer", "pin", "prefer", "other"), r.of("_zone", "_zone", "_zone", "zone")}
	}
	return []string{r.of("a", "_http"), r.of("pin", "_http"), r.of("b", "_tcp"), r.of("_zone", "c")}
}

// address is one with dashes, often of an endpoint or a Pod.
func (r asker) address() string {
	if r.IntN(4) == 0 {
		return r.of("10-244-9-9", "10-244-1", "10-244-1-256", "10-244-01-1", "1-2-3-4-5", "fd00-244--9", "--1", "--", "10--244-1-1", "web", "-ffff-10-244-1-1", "--ffff-10-244-1-1")
	}
	return dashed(r.endpoint())
}

func dashed(address string) string {
	name := strings.NewReplacer(".", "-", ":", "-").Replace(address)
	if strings.HasSuffix(name, "-") {
		name += "0"
	}
	return name
}

func (r asker) endpoint() string {
	var all []string
	for kind, some := range addresses {
		if kind != "FQDN" {
			all = append(all, some...)
		}
	}
	slices.Sort(all) // maps have no order
	return r.of(all...)
}

// reverse is the reverse name of an address, or one above or below it.
func (r asker) reverse() string {
	address := r.of(r.endpoint(), fmt.Sprintf("10.96.0.%d", 10+r.IntN(32)), fmt.Sprintf("fd00:96::%x", 10+r.IntN(32)), "10.244.9.9", "198.51.100.7")
	name, err := wire.ReverseAddr(netip.MustParseAddr(address).String())
	if err != nil {
		panic(err) // an address as netip writes it
	}
	switch labels := strings.Split(strings.TrimSuffix(name, "."), "."); r.IntN(6) {
	case 0:
		return strings.Join(labels[r.IntN(len(labels)-1):], ".")
	case 1:
		return r.of("x.", "1.", "_tcp.", "web.prod.svc.") + strings.Join(labels, ".")
	default:
		return strings.Join(labels, ".")
	}
}
