// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// Whoever finds a problem of a Service's object, its users are told; of the node's own trouble by this node.
func TestTroublesAreTheProblemsOfServices(t *testing.T) {
	web := lb.ServiceName{Namespace: "default", Name: "web"}
	clash := lb.Problem{Object: web.Object(), Field: "spec.externalIPs", Message: "belongs to another"}
	s := Status{
		Problems: []lb.Problem{clash, {Object: web.Object(), Field: "spec.ports[0].nodePort", Message: "no port"},
			{Object: "EndpointSlice default/web-1", Field: "addressType", Message: "FQDN"}, {Object: "Service ", Message: "nobody's"}},
		Failing: []FailingService{{Service: web, Error: "table slots is full", Cause: "table_full"}},
		here:    []lb.Problem{clash},
		Node:    NodeStatus{Name: "n1"},
		Ejected: []LeftOut{{web, "http", netip.MustParseAddrPort("10.1.0.1:8080")}, {web, "http", netip.MustParseAddrPort("10.1.0.2:8080")}},
	}
	want := []watch.Trouble{
		{Service: web, Reason: watch.ReasonProblem, Field: "spec.externalIPs", Message: "belongs to another", Same: "of a node", Here: true},
		{Service: web, Reason: watch.ReasonProblem, Field: "spec.ports[0].nodePort", Message: "no port"},
		{Service: web, Reason: watch.ReasonPublication, Message: "table slots is full; what was published before stays in force there", Same: "table_full", Here: true},
		{Service: web, Reason: watch.ReasonEjection, Message: "node n1 and its clients get no answer of 2 backends, such as 10.1.0.1:8080: new connections leave them out there (nearlb backends)",
			Same: "backends", Here: true},
	}
	if diff := cmp.Diff(want, s.troubles()); diff != "" {
		t.Errorf("troubles (-want +got):\n%s", diff)
	}
}
