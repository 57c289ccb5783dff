// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// namedWorld is a world whose pods' questions the programs answer from a view.
type namedWorld struct {
	*rig
	world
	view      *dns.View
	responder *dns.Responder
	own       *responder
}

// patientNames is patient, with programs that answer names.
func patientNames() bpf.Options {
	o := patient()
	o.Knobs["dns_there"] = uint8(1)
	return o
}

func namesOptions() dns.Options {
	return dns.Options{Zones: []string{"cluster.local", "k8s.example.com"}, ReverseZones: []string{"in-addr.arpa", "ip6.arpa"}, Pods: dns.PodsInsecure, TTL: 5, Zonal: true}
}

// answers has the responder of the world answer, and the programs in its place.
func (r *rig) answers(w world, own *responder, view *dns.View, o dns.Options) namedWorld {
	r.Helper()
	r.publish(w.decide(own.before(w, w.tier(53, 3))))
	r.beat(true)
	n := namedWorld{r, w, view, dns.NewResponder(view, o), own}
	view.Mirror(n.responder, r.tables.Answers(), func(err error) { r.Errorf("mirror names: %v", err) })
	return n
}

// ask asks as a pod does. ok: the program answered.
func (n namedWorld) ask(message []byte) (answer []byte, ok bool) {
	n.Helper()
	in := n.packet(at(n.pod(1), uint16(1024+rand.IntN(64000))), at(n.vip(10), 53)).with("", string(message))
	got, err := n.run(fromPod, in.bytes())
	if err != nil {
		n.Fatal(err)
	}
	if err := checkOutcome(in.bytes(), got); err != nil {
		n.Errorf("%v\nin:\n%s\nout:\n%s", err, show(in.bytes()), show(got.frame))
	}
	if got.verdict != "reject_name" {
		if out := in.to(n.own.at(n.world)); class(got.verdict) != bpf.Translate || !bytes.Equal(got.frame, out.bytes()) {
			n.Errorf("a question that is left to the responder: %s\n%s", got.verdict, cmp.Diff(show(out.bytes()), show(got.frame)))
		}
		return nil, false
	}
	return n.answered(in, got), true
}

// answered looks at all of an answer but its message, which it gives.
func (n namedWorld) answered(in packet, got outcome) []byte {
	n.Helper()
	frame := got.frame
	if got.action != actRedirect {
		n.Errorf("an answer has action %d, want it sent back", got.action)
	}
	header := ethernetHeader + 20 + 8
	if in.v6() {
		header += 20
	}
	if len(frame) < header {
		n.Fatalf("an answer of %d bytes:\n%s", len(frame), show(frame))
	}
	message := frame[header:]
	if src, dst := endpoints(n, frame); src != in.dst || dst != in.src {
		n.Errorf("an answer goes from %v to %v, want from %v to %v", src, dst, in.dst, in.src)
	}
	if !bytes.Equal(frame[:2*len(podMAC)], slices.Concat(podMAC, hostMAC)) {
		n.Errorf("an answer has the addresses %x, want those of the question exchanged", frame[:2*len(podMAC)])
	}
	if err := checkChecksums(frame); err != nil {
		n.Errorf("an answer: %v\n%s", err, show(frame))
	}
	return message
}

// says is what the responder says.
func (n namedWorld) says(message []byte) []byte {
	n.Helper()
	query := new(miekg.Msg)
	if err := query.Unpack(message); err != nil {
		return nil
	}
	client := n.pod(1)
	out, err := n.responder.Serve(context.Background(), query, dns.Client{Address: client, IP6: client.Is6()}).Pack()
	check(n, err)
	return out
}

// compare asks both, and tells whether the program answered.
func (n namedWorld) compare(message []byte) bool {
	n.Helper()
	got, ok := n.ask(message)
	if !ok {
		return false
	}
	want := n.says(message)
	if !bytes.Equal(sortedAddresses(want), sortedAddresses(got)) {
		n.Errorf("answer to %x (-responder +program)\n%s\n%x\n%x", message, cmp.Diff(messageText(want), messageText(got)), want, got)
	}
	return true
}

// sortedAddresses is a message whose addresses are sorted, which its length says nothing of.
func sortedAddresses(message []byte) []byte {
	m := new(miekg.Msg)
	if m.Unpack(message) != nil || len(m.Answer) < 2 {
		return message
	}
	size := 4
	if m.Question[0].Qtype == miekg.TypeAAAA {
		size = 16
	}
	name := bytes.IndexByte(message[12:], 0) + 1
	record := name + 10 + size
	first := 12 + name + 4
	records := slices.Collect(slices.Chunk(slices.Clone(message[first:first+len(m.Answer)*record]), record))
	slices.SortFunc(records, bytes.Compare)
	return slices.Concat(message[:first], slices.Concat(records...), message[first+len(m.Answer)*record:])
}

func messageText(message []byte) string {
	m := new(miekg.Msg)
	if err := m.Unpack(message); err != nil {
		return err.Error()
	}
	return m.String()
}

func question(name string, qtype uint16, change ...func(*miekg.Msg)) []byte {
	m := new(miekg.Msg).SetQuestion(miekg.Fqdn(name), qtype)
	for _, c := range change {
		c(m)
	}
	out, err := m.Pack()
	must(err)
	return out
}

func withEDNS(size uint16, do bool) func(*miekg.Msg) {
	return func(m *miekg.Msg) { m.SetEdns0(size, do) }
}

func addrsOf(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func readyAt(hostname string, addresses ...string) lb.NamedEndpoint {
	return lb.NamedEndpoint{Addresses: addrsOf(addresses...), Is: lb.IsReady, Hostname: hostname}
}

// shop is a view with one of everything.
func shop() *dns.View {
	view := dns.NewView(dns.ViewOptions{Node: lb.Node{Name: "n1", Zone: "a"}})
	in := func(namespace, name string) lb.ServiceName { return lb.ServiceName{Namespace: namespace, Name: name} }
	ports := []lb.NamedPort{{Name: "http", Protocol: lb.TCP, Number: 80}}
	view.Set(&lb.NamedService{Name: in("prod", "web"), ClusterIPs: addrsOf("10.96.0.20"), Ports: ports})
	view.Set(&lb.NamedService{Name: in("prod", "both"), ClusterIPs: addrsOf("10.96.0.21", "fd00:96::21"), Ports: ports})
	view.Set(&lb.NamedService{Name: in("prod", "out"), ExternalName: "www.example.com"})
	db := &lb.NamedService{Name: in("prod", "db"), Headless: true, Selection: lb.NamesOrdered}
	for i, zone := range []string{"b", "a", "", "a", "b"} {
		e := readyAt(fmt.Sprintf("db-%d", i), fmt.Sprintf("10.244.9.%d", i+1))
		e.Zone = zone
		db.Slices = append(db.Slices, lb.NewNamedSlice(fmt.Sprintf("db-%d", i), ports, e))
	}
	view.Set(db)
	many := &lb.NamedService{Name: in("prod", "many"), Headless: true}
	for i := range 20 {
		many.Slices = append(many.Slices, lb.NewNamedSlice(fmt.Sprintf("s-%02d", i), nil, readyAt("", fmt.Sprintf("10.244.8.%d", i+1))))
	}
	view.Set(many)
	view.Set(&lb.NamedService{Name: in("prod", "empty"), Headless: true})
	view.Doubt(in("test", "full"))
	view.SetNamespace("bare", true)
	view.Synced()
	return view
}

func TestQuestionsForNamesAreAnsweredByTheProgram(t *testing.T) {
	forEachWorld(t, patientNames(), func(t *testing.T, r *rig, w world) {
		n := r.answers(w, startResponder(t), shop(), namesOptions())
		for _, row := range []struct {
			name string
			in   string // "" the responder's alone
		}{
			{"web.prod.svc.cluster.local", "NOERROR"},
			{"WeB.Prod.sVC.clusTER.locaL", "NOERROR"},
			{"web.prod.svc.k8s.example.com", "NOERROR"},
			{"both.prod.svc.cluster.local", "NOERROR"},
			{"db.prod.svc.cluster.local", "NOERROR"},
			{"db-3.db.prod.svc.cluster.local", "NOERROR"},
			{"10-244-8-3.many.prod.svc.cluster.local", "NOERROR"},
			{"empty.prod.svc.cluster.local", "NXDOMAIN"},
			{"cluster.local", "NOERROR"},
			{"svc.cluster.local", "NOERROR"},
			{"prod.svc.cluster.local", "NOERROR"},
			{"bare.svc.cluster.local", "NOERROR"},
			{"bare.pod.cluster.local", "NOERROR"},
			{"www.example.com.prod.svc.cluster.local", "NXDOMAIN"},
			{"www.example.com.svc.cluster.local", "NXDOMAIN"},
			{"www.example.com.cluster.local", "NXDOMAIN"},
			{"web.bare.svc.cluster.local", "NXDOMAIN"},
			{"web.nowhere.svc.cluster.local", "NXDOMAIN"},
			{strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + ".prod.svc.cluster.local", "NXDOMAIN"},
			{`web\.prod.svc.cluster.local`, "NXDOMAIN"},
			{`\000\255.prod.svc.cluster.local`, "NXDOMAIN"},
			{"www.example.com", ""},
			{"local", ""},
			{".", ""},
			{"out.prod.svc.cluster.local", ""},
			{"full.test.svc.cluster.local", ""},
			{"x.full.test.svc.cluster.local", ""},
			{"_http._tcp.web.prod.svc.cluster.local", ""},
			{"a.pin._zone.db.prod.svc.cluster.local", ""},
			{"a.pin._zone.empty.prod.svc.cluster.local", ""},
			{"db-9.db.prod.svc.cluster.local", ""},
			{"10-244-1-1.prod.pod.cluster.local", ""},
			{"dns-version.cluster.local", ""},
			{"ns.dns.cluster.local", ""},
			{"1.0.96.10.in-addr.arpa", ""},
			{strings.Repeat("x.", 40) + "cluster.local", ""},
		} {
			for _, qtype := range []uint16{miekg.TypeA, miekg.TypeAAAA} {
				for _, change := range []func(*miekg.Msg){func(*miekg.Msg) {}, withEDNS(1232, false), withEDNS(0, true), func(m *miekg.Msg) {
					m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = false, true, true
				}} {
					message := question(row.name, qtype, change)
					if answered := n.compare(message); answered != (row.in != "") {
						t.Errorf("%s %d: the program answers: %v", row.name, qtype, answered)
					} else if answered {
						said := new(miekg.Msg)
						check(t, said.Unpack(n.says(message)))
						if got := miekg.RcodeToString[said.Rcode]; got != row.in {
							t.Errorf("%s: %s, want %s", row.name, got, row.in)
						}
					}
				}
			}
		}
	}, lb.UDP)
}

// What is no plain question is the responder's.
func TestOddQuestionsAreLeftToTheResponder(t *testing.T) {
	forEachWorld(t, patientNames(), func(t *testing.T, r *rig, w world) {
		view := shop()
		far := &lb.NamedService{Name: lb.ServiceName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63)}, Headless: true}
		for i := range 5 {
			far.Slices = append(far.Slices, lb.NewNamedSlice(fmt.Sprint(i), nil, readyAt("", fmt.Sprintf("10.244.7.%d", i))))
		}
		view.Set(far)
		long := far.Name.Name + "." + far.Name.Namespace + ".svc.cluster.local"
		n := r.answers(w, startResponder(t), view, namesOptions())
		const name = "web.prod.svc.cluster.local"
		plain := question(name, miekg.TypeA)
		edited := func(offset int, value byte) []byte {
			out := slices.Clone(plain)
			out[offset] = value
			return out
		}
		for what, message := range map[string][]byte{
			"another type":         question(name, miekg.TypeSRV),
			"ANY":                  question(name, miekg.TypeANY),
			"another class":        question(name, miekg.TypeA, func(m *miekg.Msg) { m.Question[0].Qclass = miekg.ClassCHAOS }),
			"two questions":        question(name, miekg.TypeA, func(m *miekg.Msg) { m.Question = append(m.Question, m.Question[0]) }),
			"no question":          question(name, miekg.TypeA, func(m *miekg.Msg) { m.Question = nil }),
			"an answer":            question(name, miekg.TypeA, func(m *miekg.Msg) { m.Response = true }),
			"an opcode":            question(name, miekg.TypeA, func(m *miekg.Msg) { m.Opcode = miekg.OpcodeNotify }),
			"a truncated question": question(name, miekg.TypeA, func(m *miekg.Msg) { m.Truncated = true }),
			"a bit that is zero":   question(name, miekg.TypeA, func(m *miekg.Msg) { m.Zero = true }),
			"EDNS of version 1":    question(name, miekg.TypeA, withEDNS(1232, false), func(m *miekg.Msg) { m.IsEdns0().SetVersion(1) }),
			"an option":            question(name, miekg.TypeA, withEDNS(1232, false), cookie),
			"a record of its own": question(name, miekg.TypeA, func(m *miekg.Msg) {
				m.Answer = []miekg.RR{&miekg.A{Hdr: miekg.RR_Header{Name: ".", Rrtype: miekg.TypeA, Class: 1}, A: []byte{1, 2, 3, 4}}}
			}),
			"bytes behind it":                   append(slices.Clone(plain), 0),
			"cut off":                           plain[:len(plain)-1],
			"a header alone":                    plain[:12],
			"nothing":                           {},
			"a pointer":                         edited(12, 0xc0),
			"a label that is long":              edited(12, 64),
			"more than there is":                edited(12, 63),
			"more addresses than the table has": question("many.prod.svc.cluster.local", miekg.TypeA),
			"more than fits":                    question(long, miekg.TypeA, withEDNS(800, false)),
		} {
			if _, answered := n.ask(message); answered {
				t.Errorf("%s: the program answers", what)
			}
		}
		if !n.compare(question(long, miekg.TypeA, withEDNS(1232, false))) {
			t.Error("the program does not answer what fits")
		}
	}, lb.UDP)
}

func cookie(m *miekg.Msg) {
	m.IsEdns0().Option = append(m.IsEdns0().Option, &miekg.EDNS0_COOKIE{Code: miekg.EDNS0COOKIE, Cookie: "24a5ac1223344556"})
}

// The programs answer while the responder lives and the cluster's DNS is its to answer for, and all else is as without them.
func TestTheProgramAnswersNamesWhileTheResponderDoes(t *testing.T) {
	forEachWorld(t, patientNames(), func(t *testing.T, r *rig, w world) {
		own, view := startResponder(t), shop()
		n := r.answers(w, own, view, namesOptions())
		asks := func(port uint16, verdict string, to netip.AddrPort) {
			t.Helper()
			in := w.packet(at(w.pod(1), port), at(w.vip(10), 53)).with("", string(question("web.prod.svc.cluster.local", miekg.TypeA)))
			step{hook: fromPod, in: in, verdict: verdict, out: became(in.to(to))}.play(r, int(port))
		}
		answered := func(port uint16) {
			t.Helper()
			if !n.compare(question("web.prod.svc.cluster.local", miekg.TypeA)) {
				t.Errorf("at %d the program does not answer", port)
			}
		}
		answered(1)
		r.beat(false)
		asks(41001, "translate_balance", at(w.pod(3), 53))
		r.beat(true)
		answered(2)
		r.edit(func(s *bpf.NearlbSettings) { s.Draining = 1 })
		in := w.packet(at(w.pod(1), 41002), at(w.vip(10), 53)).with("", string(question("web.prod.svc.cluster.local", miekg.TypeA)))
		step{hook: fromPod, in: in, verdict: "pass_draining", out: &in}.play(r, 3)
		r.edit(func(s *bpf.NearlbSettings) { s.Draining = 0 })
		answered(3)
		check(t, r.tables.Answers().Configure(lb.NameZones{}))
		asks(41003, "translate_balance", own.at(w))
		view.Mirror(n.responder, r.tables.Answers(), func(err error) { t.Error(err) })
		answered(4)
		s := own.before(w, w.tier(53, 3))
		s.ranges = []netip.Prefix{netip.PrefixFrom(w.pod(1), w.pod(1).BitLen())}
		r.publish(w.decide(s))
		asks(41004, "translate_balance", own.at(w))
		s.ranges, s.affinity = nil, 3600e9
		r.publish(w.decide(s))
		asks(41005, "translate_balance", own.at(w))
		r.publish(w.decide(service{name: "kube-dns", address: at(w.vip(10), 53), tiers: [][]netip.AddrPort{w.tier(53, 3)}}))
		asks(41006, "translate_balance", at(w.pod(3), 53))
	}, lb.UDP)
}

func TestEquallyNearAddressesComeFirstInTurn(t *testing.T) {
	forEachWorld(t, patientNames(), func(t *testing.T, r *rig, w world) {
		n := r.answers(w, startResponder(t), shop(), namesOptions())
		first, third := map[string]bool{}, map[string]bool{}
		for range 200 {
			got, ok := n.ask(question("db.prod.svc.cluster.local", miekg.TypeA))
			m := new(miekg.Msg)
			if !ok || m.Unpack(got) != nil || len(m.Answer) != 5 {
				t.Fatalf("answer %v: %s", ok, messageText(got))
			}
			first[m.Answer[0].(*miekg.A).A.String()] = true
			third[m.Answer[2].(*miekg.A).A.String()] = true
		}
		if want := map[string]bool{"10.244.9.2": true, "10.244.9.4": true}; !cmp.Equal(first, want) {
			t.Errorf("first come %v, want those of the zone: %v", first, want)
		}
		if want := map[string]bool{"10.244.9.1": true, "10.244.9.3": true, "10.244.9.5": true}; !cmp.Equal(third, want) {
			t.Errorf("third come %v, want the others: %v", third, want)
		}
	}, lb.UDP)
}

// A property: whatever changes, and whatever is asked, the program says what the responder says, or leaves it to that.
func TestTheProgramSaysWhatTheResponderSays(t *testing.T) {
	forEachWorld(t, patientNames(), func(t *testing.T, r *rig, w world) {
		own := startResponder(t)
		answered, asked := 0, 0
		rapid.Check(t, func(t *rapid.T) {
			draw := drawNames{t}
			view := dns.NewView(dns.ViewOptions{Node: lb.Node{Name: "n1", Zone: "a"}})
			o := namesOptions()
			o.Pods = rapid.SampledFrom([]dns.PodRecords{dns.PodsDisabled, dns.PodsInsecure, dns.PodsVerified}).Draw(t, "pods")
			o.TTL = rapid.SampledFrom([]uint32{0, 5, 3600}).Draw(t, "ttl")
			if rapid.Bool().Draw(t, "some before") {
				draw.change(view)
			}
			r.evict()
			n := r.answers(w, own, view, o)
			view.Synced()
			for range 12 {
				draw.change(view)
				for range 12 {
					message := draw.message()
					asked++
					if n.compare(message) {
						answered++
					}
				}
				if r.Failed() {
					t.Fatalf("they differ")
				}
			}
		})
		t.Logf("answered %d of %d", answered, asked)
		if answered*3 < asked {
			t.Errorf("the program answered %d questions of %d", answered, asked)
		}
	}, lb.UDP)
}

// drawNames draws changes of a view, and questions that it nearly has an answer to.
type drawNames struct{ *rapid.T }

func (d drawNames) of(label string, values ...string) string {
	return rapid.SampledFrom(values).Draw(d.T, label)
}

func (d drawNames) service() lb.ServiceName {
	return lb.ServiceName{Namespace: d.of("namespace", "prod", "test", "svc"), Name: d.of("service", "web", "db", "pod", "a_b")}
}

func (d drawNames) change(view *dns.View) {
	switch d.of("change", "set", "set", "set", "set", "narrow", "remove", "doubt", "namespace", "node", "pod") {
	case "set":
		view.Set(d.object())
	case "narrow":
		next := d.object()
		view.Narrow(next)
	case "remove":
		view.Remove(d.service())
	case "doubt":
		view.Doubt(d.service())
	case "namespace":
		view.SetNamespace(d.of("declared", "prod", "test", "bare"), rapid.Bool().Draw(d.T, "exists"))
	case "node":
		view.SetNode("n1", d.of("zone", "a", "b", ""), d.of("region", "r", ""))
	case "pod":
		name := lb.PodName{Namespace: d.of("namespace", "prod", "lonely"), Name: d.of("pod", "p1", "p2")}
		if view.RemovePod(name); rapid.Bool().Draw(d.T, "there") {
			view.SetPod(lb.NamedPod{Name: name, Addresses: addrsOf("10.244.1.7")})
		}
	}
}

func (d drawNames) object() *lb.NamedService {
	s := &lb.NamedService{Name: d.service(), Selection: rapid.SampledFrom([]lb.NameSelection{lb.NamesShuffled, lb.NamesOrdered, lb.NamesPrefer, lb.NamesPin}).Draw(d.T, "selection")}
	for range rapid.IntRange(0, 2).Draw(d.T, "ports") {
		s.Ports = append(s.Ports, lb.NamedPort{Name: d.of("port", "", "http", "dns"), Protocol: lb.TCP, Number: 80})
	}
	switch d.of("kind", "cluster", "headless", "headless", "external", "unserved", "address", "new") {
	case "cluster":
		s.ClusterIPs = addrsOf(d.of("ip", "10.96.0.1", "10.96.0.2"))
		if rapid.Bool().Draw(d.T, "dual") {
			s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:96::1"))
		}
	case "headless":
		s.Headless = true
	case "external":
		s.ExternalName = d.of("external", "www.example.com", "web.prod.svc.cluster.local")
	case "address":
		s.ExternalName = "10.1.2.3"
	case "unserved":
		s.Unserved = true
	}
	for i := range rapid.IntRange(0, 3).Draw(d.T, "slices") {
		s.Slices = append(s.Slices, lb.NewNamedSlice(fmt.Sprintf("slice-%d", i), s.Ports, d.endpoints()...))
	}
	return s
}

func (d drawNames) endpoints() (all []lb.NamedEndpoint) {
	for range rapid.IntRange(0, 4).Draw(d.T, "endpoints") {
		e := lb.NamedEndpoint{Hostname: d.of("hostname", "", "", "db-0", "Db-1", "10-244-1-1", "tcp"),
			Place: lb.Place{Node: d.of("on", "n1", "n2", ""), Zone: d.of("zone", "a", "b", ""), Region: d.of("region", "r", "")}}
		if d.of("ready", "yes", "yes", "yes", "no") == "yes" {
			e.Is = lb.IsReady
		}
		e.Addresses = addrsOf(d.of("address", "10.244.1.1", "10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5", "10.244.1.6", "fd00::1", "fd00::", "fd00:1::2"))
		all = append(all, e)
	}
	return all
}

func (d drawNames) message() []byte {
	labels := []string{"local", d.of("zone", "cluster", "cluster", "cluster", "Cluster", "other")}
	if d.of("other zone", "no", "no", "no", "yes") == "yes" {
		labels = []string{"com", "example", "k8s"}
	}
	labels = append(labels, d.of("kind", "svc", "svc", "svc", "svc", "SVC", "pod", "dns", "dns-version", "x"))
	left := [][]string{{"prod", "test", "svc", "bare", "lonely", "Prod", "com"}, {"web", "db", "pod", "a_b", "Web", "10-244-1-7", "ns"},
		{"db-0", "db-1", "10-244-1-1", "10-244-1-2", "fd00--1", "fd00--0", "_tcp", "tcp", "_zone", "x", "DB-0"}, {"_http", "http", "pin", "prefer", "x"}, {"a", "b"}}
	for _, of := range left[:rapid.SampledFrom([]int{0, 1, 2, 2, 2, 2, 3, 3, 3, 4, 5}).Draw(d.T, "labels")] {
		labels = append(labels, d.of("label", of...))
	}
	if d.of("odd", "no", "no", "no", "no", "no", "yes") == "yes" {
		labels = append(labels, wireLabel(rapid.SliceOfN(rapid.Byte(), 1, 63).Draw(d.T, "bytes")))
	}
	slices.Reverse(labels)
	m := new(miekg.Msg)
	m.Id = rapid.Uint16().Draw(d.T, "id")
	m.Question = []miekg.Question{{Name: strings.Join(labels, ".") + ".", Qtype: rapid.SampledFrom([]uint16{miekg.TypeA, miekg.TypeAAAA, miekg.TypeA, miekg.TypeAAAA, miekg.TypeSRV, miekg.TypeANY}).Draw(d.T, "type"), Qclass: miekg.ClassINET}}
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = rapid.Bool().Draw(d.T, "rd"), rapid.Bool().Draw(d.T, "cd"), rapid.Bool().Draw(d.T, "ad")
	if size := rapid.SampledFrom([]uint16{0, 0, 100, 512, 1232, 4096, 65535}).Draw(d.T, "size"); size != 0 {
		m.SetEdns0(size, rapid.Bool().Draw(d.T, "do"))
	}
	out, err := m.Pack()
	if err != nil { // the name is too long
		return question("web.prod.svc.cluster.local", miekg.TypeA)
	}
	if d.of("spoiled", "no", "no", "no", "no", "no", "no", "yes") == "yes" {
		out[rapid.IntRange(0, len(out)-1).Draw(d.T, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(d.T, "bit")
	}
	return out
}

// wireLabel is the text of a label of any bytes.
func wireLabel(label []byte) string {
	out := ""
	for _, b := range label {
		out += fmt.Sprintf(`\%03d`, b)
	}
	return out
}
