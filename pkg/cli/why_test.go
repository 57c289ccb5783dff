// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/trace"
)

// sound is a client of a Service where nothing is wrong.
func sound() *seen {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	client, at := netip.MustParseAddr("10.244.1.7"), netip.MustParseAddr("10.96.0.10")
	service := lb.ServiceName{Namespace: "prod", Name: "web"}
	port := lb.PortName{Service: service, Port: "http", Protocol: lb.TCP}
	side := maps.SideRow{Action: "balance", Reason: "all"}
	return &seen{now: now, client: client.String(), service: service, answered: true,
		status:    &agent.Status{State: agent.Serving, Running: true, Written: now, Node: agent.NodeStatus{Name: "n1"}},
		news:      agent.ServiceNews{Known: true, Endpoints: []lb.EndpointReason{{Port: port, Address: netip.MustParseAddrPort("10.244.1.2:8080"), Slice: "web-1", Selected: true, Reason: lb.ReasonAll}}},
		frontends: []maps.FrontendRow{{Service: "prod/web", Port: "http", Protocol: "TCP", Kind: "ClusterIP", Address: at, FrontendPort: 80, Internal: side, External: side}},
		tries: []try{{Frontend: "10.96.0.10:80", Kind: "ClusterIP", Port: "http", Protocol: "TCP", From: trace.FromPod, Client: client, to: at, side: side,
			Answer: trace.Answer{Verdict: "translate", Reason: "balance", Backends: []trace.Backend{{Address: netip.MustParseAddr("10.244.1.2"), Port: 8080, Tier: "node", Count: 1}}}}}}
}

// Faults that one may have at once, those first that must be named first.
var faults = []struct {
	what  string
	plant func(*seen)
}{
	{"agent-dead", func(s *seen) { s.status.Running = false }},
	{"publication-failed", func(s *seen) {
		s.status.Failing = []agent.FailingService{{Service: s.service, Error: "table slots is full"}}
	}},
	{"unknown-port", func(s *seen) { s.port, s.tries = "https", nil }},
	{"endpoints-not-ready", func(s *seen) {
		s.refuse("reject", "no-endpoints")
		s.news.Endpoints[0].Selected, s.news.Endpoints[0].Reason = false, lb.ReasonNotReady
	}},
	{"wrong-annotation", func(s *seen) {
		s.news.Problems = []lb.Problem{{Object: "Service prod/web", Field: "metadata.annotations[nearlb.io/local-fallback]", Message: "must be true"}}
	}},
	{"dropped-before", func(s *seen) {
		s.drops = []journal.Drop{{Time: s.now.Add(-time.Minute), Verdict: "reject", Reason: "no-endpoints", Service: "prod/web"}}
	}},
}

func (s *seen) refuse(verdict, reason string) {
	for i := range s.tries {
		s.tries[i].Answer = trace.Answer{Verdict: verdict, Reason: reason}
	}
}

func TestOfSeveralFaultsTheOneBehindTheOthersIsNamedFirst(t *testing.T) {
	for set := range 1 << len(faults) {
		s, want := sound(), []string{}
		for i, fault := range faults {
			if set&(1<<i) != 0 {
				fault.plant(s)
				want = append(want, fault.what)
			}
		}
		if len(want) == 0 {
			want = []string{"nothing-wrong"}
		}
		if got := diagnose(s).Causes[0].What; got != want[0] {
			t.Errorf("with %v: %s is named first", want, got)
		}
	}
}

func TestEachReasonOfARefusalIsNamed(t *testing.T) {
	for want, plant := range map[string]func(*seen){
		"agent-dead":      func(s *seen) { s.status, s.unknown = nil, errors.New("no agent status") },
		"agent-starting":  func(s *seen) { s.status.State = agent.Starting },
		"no-such-service": func(s *seen) { s.frontends, s.tries, s.news = nil, nil, agent.ServiceNews{} },
		"no-frontends":    func(s *seen) { s.frontends, s.tries = nil, nil },
		"no-endpoints":    func(s *seen) { s.refuse("reject", "no-endpoints"); s.news.Endpoints = nil },
		"endpoints-of-other-ports": func(s *seen) {
			s.refuse("reject", "no-endpoints")
			s.news.Endpoints[0].Port.Port, s.news.Endpoints[0].Reason = "web", lb.ReasonNoServicePort
		},
		"no-local-endpoints": func(s *seen) { s.refuse("drop", "no-local-endpoints") },
		"source-ranges":      func(s *seen) { s.refuse("drop", "source-range") },
		"no-topology-match":  func(s *seen) { s.refuse("reject", "no-topology-match") },
		"no-route":           func(s *seen) { s.refuse("drop", "no-route") },
		"disabled":           func(s *seen) { s.refuse("pass", "disabled") },
		"problem": func(s *seen) {
			s.news.Problems = []lb.Problem{{Object: "Service prod/web", Field: "spec.externalIPs", Message: "x"}}
		},
	} {
		s := sound()
		plant(s)
		doc := diagnose(s)
		if first := doc.Causes[0]; first.What != want || first.Text == "" || first.Next == "" {
			t.Errorf("want %s, got %+v", want, first)
		}
		var out bytes.Buffer
		if err := writeWhy(&out, 80, doc); err != nil || !strings.Contains(out.String(), "\ncause   "+want) {
			t.Errorf("%s: %v\n%s", want, err, &out)
		}
		for line := range strings.Lines(out.String()) {
			if len(strings.TrimRight(line, "\n")) > 80 {
				t.Errorf("%s: a line has %d columns: %s", want, len(line)-1, line)
			}
		}
	}
}

// Without a client no packet is sent, and what the tables refuse is explained by the endpoints of the frontend's family.
func TestWithoutAClientTheTablesSayWhatIsRefused(t *testing.T) {
	for address, want := range map[string]string{"10.96.0.10": "endpoints-not-ready", "fd00::10": "no-endpoints"} {
		s := sound()
		s.tries, s.client = nil, ""
		s.news.Endpoints[0].Selected, s.news.Endpoints[0].Reason = false, lb.ReasonNotReady
		s.frontends[0].Address = netip.MustParseAddr(address)
		s.frontends[0].Internal = maps.SideRow{Action: "reject", Reason: "no-endpoints"}
		s.askTables()
		doc := diagnose(s)
		if doc.Causes[0].What != want || len(doc.Tries) != 0 || doc.Client != "" {
			t.Errorf("%s: %+v, packets %+v", address, doc.Causes, doc.Tries)
		}
	}
}

func TestAWhyHasItsFields(t *testing.T) {
	s := sound()
	faults[5].plant(s)
	faults[4].plant(s)
	lacks(t, fields(t, diagnose(s)), []string{"node", "client", "client_pod", "service", "port", "causes[].what", "causes[].text", "causes[].next",
		"tries[].frontend", "tries[].kind", "tries[].from", "tries[].answer.verdict", "tries[].answer.reason", "tries[].answer.backends[].address",
		"endpoints[].address", "endpoints[].selected", "endpoints[].reason", "drops[].reason", "problems[].message", "api_differences", "others"})
}

// A problem that objects and status both have is told once.
func TestAProblemIsToldOnce(t *testing.T) {
	s := sound()
	p := lb.Problem{Object: "Service prod/web", Field: "spec.externalIPs", Message: "x"}
	s.news.Problems = []lb.Problem{p, p}
	if doc := diagnose(s); len(doc.Causes) != 1 || len(doc.Problems) != 1 || doc.Problems[0] != p {
		t.Errorf("%+v", doc)
	}
}

// Programs and filters of others at the client's device are told of, whatever is wrong.
func TestOthersProgramsAreNamed(t *testing.T) {
	s := sound()
	s.others = []otherProgram{
		{Device: "veth1", ID: 7, Hook: "ingress", Method: attach.TCX},
		{Device: "veth1", ID: 8, Name: "cali_from", Hook: "ingress", Method: attach.Clsact, After: true},
		{Device: "veth1", Name: "flower", Hook: "egress", Method: attach.Clsact},
	}
	var out bytes.Buffer
	doc := diagnose(s)
	if err := writeWhy(&out, 80, doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Others) != 3 || doc.Causes[0].What != "nothing-wrong" || !strings.Contains(doc.Causes[0].Next, "programs of others") {
		t.Errorf("%+v", doc)
	}
	for _, want := range []string{
		"before  program 7 sees the client's packets on veth1 first",
		"after   cali_from (clsact program 8) sees the client's packets on veth1 after",
		"answers a filter (clsact flower) sees the answers to the client on veth1",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &out)
		}
	}
}

// A backend that just died answered somebody until then: only one that answers while connections to it wait is told to answer others.
func TestOnlyABackendThatAnswersMeanwhileIsSaidToAnswerOthers(t *testing.T) {
	for reply, others := range map[int64]bool{1: true, 29: false} {
		s := sound()
		s.backends = []maps.BackendRow{{Service: "prod/web", Port: "http", Protocol: "TCP", Lists: []string{"cluster"}, Unanswered: 1, LastReplySeconds: &reply}}
		if first := diagnose(s).Causes[0]; first.What != "backends-do-not-answer" || strings.Contains(first.Next, "NetworkPolicy") != others {
			t.Errorf("its last answer was %d s ago: %+v", reply, first)
		}
	}
}

func TestAnnotationsAreToldWithWhetherTheyHaveAnEffect(t *testing.T) {
	all := []lb.Annotation{{Name: "nearlb.io/retry-refused", Value: "true"}, {Name: "nearlb.io/slow-strat", Value: "30s", Problem: "did you mean"}}
	if got, want := annotationsText(all), "retry-refused=true, slow-strat (no effect)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What the objects say of an endpoint is not in force where its backend does not answer and is left out.
func TestAnEndpointThatIsLeftOutIsNotCalledUsed(t *testing.T) {
	s := sound()
	other := s.news.Endpoints[0]
	other.Address = netip.MustParseAddrPort("10.244.1.3:8080")
	s.news.Endpoints = append(s.news.Endpoints, other)
	s.backends = []maps.BackendRow{{Service: "prod/web", Port: "http", Protocol: "TCP", Address: other.Address.Addr(), BackendPort: 8080, Lists: []string{"cluster"},
		EjectedUntil: "2026-01-02T03:05:05Z", EjectedBecause: "no answer to 3 connections of one client, nor to this node"}}
	doc := diagnose(s)
	if e := doc.Endpoints; len(e) != 2 || !e[0].Selected || e[0].Reason != lb.ReasonAll || e[1].Selected || e[1].Reason != explain.Ejected {
		t.Errorf("%+v", e)
	}
	var out bytes.Buffer
	if err := writeWhy(&out, 80, doc); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "no    ejected\n") || !strings.Contains(text, "  ejected: new connections leave it out for a while") {
		t.Errorf("printed\n%s", text)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("wider than the terminal: %q", line)
		}
	}
}

// Who asks for one port is not told of the endpoints of others.
func TestEndpointsAreThoseOfThePortThatWasAskedFor(t *testing.T) {
	s := sound()
	other := s.news.Endpoints[0]
	other.Port.Port = "metrics"
	s.news.Endpoints = append(s.news.Endpoints, other)
	all := len(diagnose(s).Endpoints)
	s.port = s.news.Endpoints[0].Port.Port
	if one := len(diagnose(s).Endpoints); one != all-1 || one == 0 {
		t.Errorf("%d of %d endpoints", one, all)
	}
}
