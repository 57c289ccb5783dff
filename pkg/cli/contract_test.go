// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bench"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/trace"
)

// fields lists the names of a document: "frontends[].internal.action".
func fields(t *testing.T, document any) []string {
	t.Helper()
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	collectFields("", value, names)
	return slices.Sorted(maps.Keys(names))
}

func collectFields(prefix string, value any, names map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			path := name
			if prefix != "" {
				path = prefix + "." + name
			}
			names[path] = true
			collectFields(path, inner, names)
		}
	case []any:
		for _, inner := range v {
			collectFields(prefix+"[]", inner, names)
		}
	}
}

func sampleDecision() (lb.Node, lb.Decision) {
	service := lb.ServiceName{Namespace: "default", Name: "web"}
	port := lb.PortName{Service: service, Port: "http", Protocol: lb.TCP}
	key := lb.BackendKey{Port: port.Key(), Address: netip.MustParseAddrPort("10.244.1.2:8080")}
	side := lb.Side{Action: lb.Balance, Reason: lb.ReasonSameZone, List: lb.ListCluster,
		Tiers: []lb.Tier{{Name: lb.TierZone, Backends: []lb.BackendKey{key}}}}
	return lb.Node{Name: "n1", Zone: "a", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, lb.Decision{
		Service: service,
		Frontends: []lb.Frontend{{
			Key:  lb.FrontendKey{Address: netip.MustParseAddrPort("203.0.113.1:80"), Protocol: lb.TCP},
			Port: port, Kind: lb.KindLoadBalancer, Internal: side, External: side,
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		}},
		Backends:  []lb.Backend{{Key: key, Node: "n1", Zone: "a", State: lb.Active, Near: lb.TierNode}},
		Endpoints: []lb.EndpointReason{{Port: port, Address: key.Address, Slice: "web-1", Selected: true, Reason: lb.ReasonSameZone}},
		Problems:  []lb.Problem{{Object: "Service default/web", Field: "spec", Message: "odd"}},
	}
}

// The names of contracts.md. Fields may be added to a document, so each list is what must be there.
func TestThePlanHasTheFieldsOfTheContract(t *testing.T) {
	node, decision := sampleDecision()
	got := fields(t, plan.NewDocument(node, lb.OffNodeSNAT, []lb.Decision{decision}, nil))
	side := func(name string) []string {
		in := "frontends[]." + name
		backend := in + ".tiers[].backends[]"
		return []string{in, in + ".action", in + ".reason", in + ".tiers", in + ".tiers[].tier", in + ".tiers[].backends",
			backend + ".address", backend + ".port", backend + ".node", backend + ".zone", backend + ".state"}
	}
	want := slices.Concat([]string{
		"node", "node.name", "node.zone", "node.region", "node.addresses",
		"frontends", "frontends[].service", "frontends[].port", "frontends[].protocol", "frontends[].kind", "frontends[].address",
		"frontends[].frontendPort", "frontends[].affinitySeconds", "frontends[].sourceRanges",
		"endpoints", "endpoints[].service", "endpoints[].port", "endpoints[].address", "endpoints[].selected", "endpoints[].reason",
		"problems", "problems[].object", "problems[].field", "problems[].message",
	}, side("internal"), side("external"))
	lacks(t, got, want)
}

func lacks(t *testing.T, got, want []string) {
	t.Helper()
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("field %s is missing", name)
		}
	}
}

func TestAPlanOfNothingHasEmptyListsAndNoNull(t *testing.T) {
	text, err := json.Marshal(plan.NewDocument(lb.Node{}, lb.OffNodeSNAT, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"node":{"name":"","zone":"","region":"","addresses":[]},"frontends":[],"endpoints":[],"problems":[]}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
}

func TestATraceHasTheFieldsOfTheContract(t *testing.T) {
	port, source := "http", netip.MustParseAddr("10.244.1.1")
	answer := trace.Answer{
		ID: "x1", Verdict: "translate", Reason: "balance", Service: "default/web", Port: &port,
		Backends: []trace.Backend{{Address: netip.MustParseAddr("10.244.1.2"), Port: 8080, Tier: "node", Count: 31}}, Source: &source,
	}
	text, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"x1","verdict":"translate","reason":"balance","service":"default/web","port":"http",` +
		`"backends":[{"address":"10.244.1.2","port":8080,"tier":"node","count":31}],"snat":false,"source":"10.244.1.1"}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Error(diff)
	}
}

func TestTheBenchmarkHasTheFieldsOfTheContract(t *testing.T) {
	got := fields(t, bench.Result{Paths: []bench.Path{{Name: "from_pod/tcp4/established"}}})
	lacks(t, got, []string{"kernel", "cpu", "runs", "floor", "floor.empty", "floor.hash_lookup_net", "floor.rewrite_net",
		"paths", "paths[].name", "paths[].flows", "paths[].min", "paths[].median", "paths[].net", "paths[].instructions"})
}

func TestProblemsAreSaidOnceAndInOrder(t *testing.T) {
	node, decision := sampleDecision()
	more := []lb.Problem{{Object: "Z"}, {Object: "A"}, {Object: "Z"}, decision.Problems[0]}
	got := fmt.Sprint(plan.NewDocument(node, lb.OffNodeSNAT, []lb.Decision{decision}, more).Problems)
	if want := "[{A  } {Service default/web spec odd} {Z  }]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
