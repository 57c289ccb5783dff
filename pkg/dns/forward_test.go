// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// countingUpstream answers with records in the format of zone files, where @ is the name, and notes what it was asked.
type countingUpstream struct {
	mu     sync.Mutex
	asked  []*wire.Msg
	answer []string
	denial []string // of the authority
	rcode  int
	takes  time.Duration
	err    error
}

func (u *countingUpstream) Exchange(_ context.Context, query *wire.Msg) (*wire.Msg, error) {
	u.mu.Lock()
	u.asked = append(u.asked, query)
	out, err, takes := new(wire.Msg).SetRcode(query, u.rcode), u.err, u.takes
	out.Answer, out.Ns = parsed(query, u.answer), parsed(query, u.denial)
	u.mu.Unlock()
	time.Sleep(takes) // of the test's clock
	if err != nil {
		return nil, err
	}
	return out, nil
}

func parsed(query *wire.Msg, lines []string) (all []wire.RR) {
	for _, line := range lines {
		rr, err := wire.NewRR(strings.ReplaceAll(line, "@", query.Question[0].Name))
		if err != nil {
			panic(err)
		}
		all = append(all, rr)
	}
	return all
}

// times is how often it was asked since the last call.
func (u *countingUpstream) times() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := len(u.asked)
	u.asked = nil
	return n
}

// becomes changes what it says.
func (u *countingUpstream) becomes(rcode int, err error, answer ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rcode, u.err, u.answer = rcode, err, answer
}

// forwarding runs a test of a forwarder in a bubble of time.
func forwarding(t *testing.T, test func(t *testing.T, u *countingUpstream, ask func(name string, change ...func(*wire.Msg)) (*wire.Msg, Way))) {
	synctest.Test(t, func(t *testing.T) {
		u := &countingUpstream{answer: []string{"@ 60 IN A 192.0.2.1"}}
		f := NewForwarder(u)
		test(t, u, func(name string, change ...func(*wire.Msg)) (*wire.Msg, Way) {
			q := new(wire.Msg).SetQuestion(name, wire.TypeA)
			for _, c := range change {
				c(q)
			}
			m, way, err := f.Exchange(t.Context(), q, netip.MustParseAddr("10.244.1.1"), true)
			if err != nil {
				m = refusal(q, wire.RcodeServerFailure)
			}
			if m.Id != q.Id || m.Question[0].Name != name {
				t.Errorf("%s: the answer is to %v", name, m)
			}
			return m, way
		})
		synctest.Wait()
		if f.waiting.taken != 0 || len(f.waiting.by) != 0 || len(f.flights) != 0 {
			t.Errorf("%d places of %v are not given back, %d questions under way", f.waiting.taken, f.waiting.by, len(f.flights))
		}
	})
}

func ttl(m *wire.Msg) uint32 { return m.Answer[0].Header().Ttl }

func TestAnAnswerIsKeptAsLongAsItSays(t *testing.T) {
	forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
		if m, way := ask("www.example.com."); way != WayForwarded || ttl(m) != 60 {
			t.Errorf("%s: %v", way, m)
		}
		for _, row := range []struct {
			sleep time.Duration
			ttl   uint32
		}{{0, 60}, {1500 * time.Millisecond, 59}, {48 * time.Second, 11}, {time.Millisecond, 11}} {
			time.Sleep(row.sleep)
			if m, way := ask("WWW.Example.com."); way != WayCached || ttl(m) != row.ttl || m.Answer[0].Header().Name != "WWW.Example.com." {
				t.Errorf("%s: %v, want %d s", way, m, row.ttl)
			}
		}
		if u.times() != 1 {
			t.Error("asked again")
		}
		time.Sleep(time.Hour)
		if _, way := ask("www.example.com."); way != WayForwarded || u.times() != 1 {
			t.Errorf("expired: %s", way)
		}
	})
}

// RFC 2308.
func TestADenialIsKeptAsLongAsItsZoneSays(t *testing.T) {
	for _, row := range []struct {
		name   string
		rcode  int
		answer []string
		denial string
		kept   time.Duration
	}{
		{"no name, the minimum is less", wire.RcodeNameError, nil, "example.com. 900 IN SOA ns. host. 1 2 3 4 20", 20 * time.Second},
		{"no record, the SOA's lifetime is less", wire.RcodeSuccess, nil, "example.com. 30 IN SOA ns. host. 1 2 3 4 900", 30 * time.Second},
		{"another name, and that has no record", wire.RcodeSuccess, []string{"@ 10 IN CNAME other.example.com."}, "example.com. 30 IN SOA ns. host. 1 2 3 4 900", 10 * time.Second},
		{"no longer than half an hour", wire.RcodeNameError, nil, "example.com. 86400 IN SOA ns. host. 1 2 3 4 86400", longestNegative},
		{"without SOA", wire.RcodeNameError, nil, "", 0},
		{"a referral", wire.RcodeSuccess, nil, "example.com. 900 IN NS ns.example.com.", 0},
		{"no longer than an hour", wire.RcodeSuccess, []string{"@ 86400 IN A 192.0.2.1"}, "", longestLife},
		{"a lifetime of zero", wire.RcodeSuccess, []string{"@ 0 IN A 192.0.2.1"}, "", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
				u.becomes(row.rcode, nil, row.answer...)
				if row.denial != "" {
					u.denial = []string{row.denial}
				}
				ask("www.example.com.")
				if row.kept > 0 {
					time.Sleep(row.kept - time.Millisecond)
					m, way := ask("www.example.com.")
					if way != WayCached || m.Rcode != row.rcode || len(m.Ns) != len(u.denial) {
						t.Errorf("before: %s, %v", way, m)
					}
					for _, rr := range records(m) { // RFC 2308 5: whoever asks us keeps it no longer than we do
						if rr.Header().Ttl != 1 {
							t.Errorf("%v has more than the last second", rr)
						}
					}
					time.Sleep(time.Millisecond)
				}
				if _, way := ask("www.example.com."); way != WayForwarded || u.times() != 2 {
					t.Errorf("after: %s", way)
				}
			})
		})
	}
}

func TestAnswersToDifferentQuestionsAreKeptApart(t *testing.T) {
	forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
		for _, change := range []func(*wire.Msg){
			func(*wire.Msg) {},
			func(m *wire.Msg) { m.Question[0].Qtype = wire.TypeAAAA },
			func(m *wire.Msg) { m.SetEdns0(1232, true) },
			func(m *wire.Msg) { m.CheckingDisabled = true },
			func(m *wire.Msg) { m.RecursionDesired = false },
		} {
			u.becomes(wire.RcodeSuccess, nil, "@ 60 IN A 192.0.2.1", "@ 60 IN AAAA 2001:db8::1")
			for _, want := range []Way{WayForwarded, WayCached} {
				if m, way := ask("www.example.com.", change); way != want || m.IsEdns0() != nil {
					t.Errorf("%s, want %s: %v", way, want, m)
				}
			}
			if q := u.asked[0]; u.times() != 1 || q.Question[0].Name != "www.example.com." {
				t.Errorf("asked %v", q)
			}
		}
		if m, way := ask("www.example.com.", func(m *wire.Msg) { m.SetEdns0(4096, false) }); way != WayCached {
			t.Errorf("EDNS without DO: %s: %v", way, m)
		}
	})
}

func TestEqualQuestionsThatWaitShareOne(t *testing.T) {
	forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
		u.takes = time.Second
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				name := "www.example.com."
				if i%2 == 0 {
					name = "WWW.example.com."
				}
				if m, way := ask(name); way != WayForwarded || len(m.Answer) != 1 || m.Answer[0].Header().Name != name {
					t.Errorf("%s: %v", way, m)
				}
			})
		}
		all.Wait()
		if n := u.times(); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// RFC 8767 5: try first; what is old after 1.8 s, or when that fails; then without trying, until the failure is half a minute old.
func TestWhatIsOldIsToldWhenTheUpstreamDoesNotAnswer(t *testing.T) {
	for name, failure := range map[string]func(u *countingUpstream){
		"no answer": func(u *countingUpstream) { u.becomes(wire.RcodeSuccess, errors.New("no answer")) },
		"SERVFAIL":  func(u *countingUpstream) { u.becomes(wire.RcodeServerFailure, nil) },
		"REFUSED":   func(u *countingUpstream) { u.becomes(wire.RcodeRefused, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
				ask("www.example.com.")
				failure(u)
				u.takes = time.Second
				u.times()
				time.Sleep(61 * time.Second)
				told := func(when string, after time.Duration, times int) {
					t.Helper()
					began := time.Now()
					if m, way := ask("www.example.com."); way != WayStale || m.Rcode != wire.RcodeSuccess || ttl(m) != staleTTL {
						t.Errorf("%s: %s, %v", when, way, m)
					}
					if took, n := time.Since(began), u.times(); took != after || n != times {
						t.Errorf("%s: after %v, asked %d times; want %v and %d", when, took, n, after, times)
					}
				}
				told("it is asked first", time.Second, 1)
				told("and not again at once", 0, 0)
				time.Sleep(recheckAfter - time.Millisecond)
				told("for half a minute", 0, 0)
				time.Sleep(time.Millisecond)
				u.takes = 5 * time.Second
				told("a client waits no longer than 1.8 s", staleAfter, 1)
				told("nor does the next one, for the same question", staleAfter, 0)
				time.Sleep(recheckAfter + 5*time.Second)
				u.becomes(wire.RcodeNameError, nil)
				u.takes = 0
				if m, way := ask("www.example.com."); way != WayForwarded || m.Rcode != wire.RcodeNameError {
					t.Errorf("it answers: %s, %v", way, m)
				}
				u.becomes(wire.RcodeSuccess, errors.New("no answer"))
				if m, _ := ask("www.example.com."); m.Rcode != wire.RcodeServerFailure {
					t.Errorf("what was denied is told: %v", m)
				}
			})
		})
	}
}

func TestWhatIsOldIsToldForADay(t *testing.T) {
	forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
		ask("www.example.com.")
		u.becomes(wire.RcodeSuccess, errors.New("no answer"))
		time.Sleep(time.Minute + longestStale - time.Second)
		if _, way := ask("www.example.com."); way != WayStale {
			t.Errorf("within: %s", way)
		}
		time.Sleep(time.Second)
		if m, way := ask("www.example.com."); way != WayForwarded || m.Rcode != wire.RcodeServerFailure {
			t.Errorf("after: %s, %v", way, m)
		}
	})
}

// A client that asks again and again does not occupy the upstream: that it fails is known for a second.
func TestAFailureIsKeptForASecond(t *testing.T) {
	forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
		u.becomes(wire.RcodeSuccess, errors.New("no answer"))
		for _, want := range []Way{WayForwarded, WayCached} {
			if m, way := ask("www.example.com."); way != want || m.Rcode != wire.RcodeServerFailure {
				t.Errorf("%s: %v", way, m)
			}
		}
		time.Sleep(failureLife)
		u.becomes(wire.RcodeSuccess, nil, "@ 60 IN A 192.0.2.1")
		if m, way := ask("www.example.com."); way != WayForwarded || len(m.Answer) != 1 {
			t.Errorf("%s: %v", way, m)
		}
		u.becomes(wire.RcodeSuccess, errNoUpstream)
		for range 2 {
			if _, way := ask("other.example.com."); way != WayForwarded {
				t.Errorf("nobody was asked: %s", way)
			}
		}
	})
}

func TestNamesOfTheClusterAreNeverOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &countingUpstream{answer: []string{"@ 60 IN A 192.0.2.1"}}
		r := NewResponder(NewView(ViewOptions{}), Options{Zones: []string{"cluster.local"}, ReverseZones: []string{"in-addr.arpa"}, Forwarder: NewForwarder(u)})
		for _, row := range []struct {
			name string
			want int
		}{{"www.example.com.", wire.RcodeSuccess}, {"1.2.0.192.in-addr.arpa.", wire.RcodeServerFailure}} {
			u.becomes(wire.RcodeSuccess, nil, "@ 60 IN A 192.0.2.1")
			ask := func() int {
				return r.Serve(t.Context(), new(wire.Msg).SetQuestion(row.name, wire.TypeA), Client{}).Rcode
			}
			if got := ask(); got != wire.RcodeSuccess {
				t.Errorf("%s: %s", row.name, wire.RcodeToString[got])
			}
			time.Sleep(time.Minute)
			u.becomes(wire.RcodeSuccess, errors.New("no answer"))
			u.times()
			for range 2 { // the second one does not wait for the upstream
				if got := ask(); got != row.want {
					t.Errorf("%s: %s, want %s", row.name, wire.RcodeToString[got], wire.RcodeToString[row.want])
				}
			}
			if n := u.times(); n != 1 {
				t.Errorf("%s: asked %d times", row.name, n)
			}
		}
	})
}

func TestPopularNamesAreAskedForBeforeTheyExpire(t *testing.T) {
	forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
		ask("rare.example.com.")
		for range popular {
			ask("www.example.com.")
		}
		u.times()
		time.Sleep(54 * time.Second)
		u.takes = time.Second
		for _, name := range []string{"rare.example.com.", "www.example.com.", "www.example.com."} {
			if m, way := ask(name); way != WayCached || ttl(m) != 6 {
				t.Errorf("%s: %s: %v", name, way, m)
			}
		}
		time.Sleep(2 * time.Second)
		if n := u.times(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if m, way := ask("www.example.com."); way != WayCached || ttl(m) != 59 {
			t.Errorf("%s: %v", way, m)
		}
		for range popular {
			ask("www.example.com.")
		}
		time.Sleep(55 * time.Second)
		u.becomes(wire.RcodeServerFailure, nil)
		u.times()
		for range 3 { // a failure takes nothing away, and is not tried again at once
			if m, way := ask("www.example.com."); way != WayCached || len(m.Answer) != 1 {
				t.Errorf("%s: %v", way, m)
			}
			time.Sleep(time.Second)
		}
		if n := u.times(); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestKeptAddressesComeInAnyOrder(t *testing.T) {
	forwarding(t, func(t *testing.T, u *countingUpstream, ask func(string, ...func(*wire.Msg)) (*wire.Msg, Way)) {
		u.becomes(wire.RcodeSuccess, nil, "@ 60 IN CNAME w.example.com.", "w.example.com. 60 IN A 192.0.2.1", "w.example.com. 60 IN A 192.0.2.2", "w.example.com. 60 IN A 192.0.2.3")
		first := map[string]bool{}
		for range 1000 {
			m, _ := ask("www.example.com.")
			if m.Answer[0].Header().Rrtype != wire.TypeCNAME || len(m.Answer) != 4 {
				t.Fatalf("got %v", m)
			}
			first[m.Answer[1].(*wire.A).A.String()] = true
		}
		if len(first) != 3 {
			t.Errorf("first: %v", first)
		}
	})
}

// What a resolver asks for www.example.com from a pod with ndots:5: four names and two types.
func TestALookUpOutsideCostsOneUpstreamQuestionForEachType(t *testing.T) {
	view := NewView(ViewOptions{})
	view.SetNamespace("prod", true)
	view.Synced()
	u := &countingUpstream{answer: []string{"@ 60 IN A 192.0.2.1", "@ 60 IN AAAA 2001:db8::1"}}
	r := NewResponder(view, Options{Zones: []string{"cluster.local"}, Forwarder: NewForwarder(u)})
	pod := Kubelet{Zone: "cluster.local", ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}.
		NamesOf(lb.NamedPod{Name: lb.PodName{Namespace: "prod", Name: "cart-0"}, Wishes: &lb.PodWishes{}})
	questions := 0
	for range 10 {
		for _, name := range pod.Walk("www.example.com") {
			for _, qtype := range []uint16{wire.TypeA, wire.TypeAAAA} {
				m := r.Serve(t.Context(), new(wire.Msg).SetQuestion(name, qtype), Client{})
				if found := name == "www.example.com."; found != (len(m.Answer) > 0) || !found && m.Rcode != wire.RcodeNameError {
					t.Errorf("%s: %v", name, m)
				}
				questions++
			}
		}
	}
	if questions != 80 || u.times() != 2 {
		t.Errorf("%d questions", questions)
	}
}

func TestWhatComesOutOfTheCacheIsWhatCameIn(t *testing.T) {
	in := new(wire.Msg).SetQuestion("www.example.com.", wire.TypeMX)
	in.Response = true
	in.Answer = parsed(in, []string{"@ 60 IN MX 10 mail.example.com.", "@ 60 IN MX 20 other.example.com."})
	in.Extra = parsed(in, []string{"mail.example.com. 60 IN A 192.0.2.1"})
	out, _, err := keep(keyOf(in), in, time.Now(), time.Minute).answer(in, time.Now())
	if err != nil || !slices.Equal(strings.Split(fmt.Sprint(out), "\n"), strings.Split(fmt.Sprint(in), "\n")) {
		t.Errorf("%v: got %v, want %v", err, out, in)
	}
}

// told notes what an observer is told, in order.
type told []string

func (o *told) Answered(qtype, rcode string, way Way, _ time.Duration) {
	*o = append(*o, strings.Join([]string{qtype, rcode, string(way)}, " "))
}

func (o *told) Asked(result Result, _ time.Duration) { *o = append(*o, string(result)) }

func TestAnObserverIsToldOfTheWayOfEachAnswer(t *testing.T) {
	var got told
	u := &countingUpstream{answer: []string{"@ 60 IN A 192.0.2.1"}}
	view := NewView(ViewOptions{})
	view.Synced()
	r := NewResponder(view, Options{Zones: []string{"cluster.local"}, Forwarder: NewForwarder(u), Observer: &got})
	for _, q := range []struct {
		name  string
		qtype uint16
	}{{"www.example.com.", wire.TypeA}, {"www.example.com.", wire.TypeA}, {"no.svc.cluster.local.", wire.TypeAAAA}, {"cluster.local.", wire.TypeDS}} {
		r.Serve(t.Context(), new(wire.Msg).SetQuestion(q.name, q.qtype), Client{})
	}
	if want := (told{"A NOERROR forwarded", "A NOERROR cached", "AAAA NXDOMAIN responder", "other NOERROR responder"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	got = nil
	dead := NewUpstreams([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")})
	dead.Observer = &got
	if _, err := dead.Exchange(t.Context(), new(wire.Msg).SetQuestion("www.example.com.", wire.TypeA)); err == nil || !slices.Equal(got, told{"silent"}) {
		t.Errorf("%v, told %q", err, got)
	}
	if servers := dead.Servers(); len(servers) != 1 || !servers[0].Silent {
		t.Errorf("got %v", servers)
	}
	got = nil
	dead = NewUpstreams([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")})
	dead.Observer = &got
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dead.Exchange(late, new(wire.Msg).SetQuestion("www.example.com.", wire.TypeA)); !errors.Is(err, context.Canceled) || len(got) > 0 {
		t.Errorf("no time was left to ask: %v, told %q", err, got)
	}
}
