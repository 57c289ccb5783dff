// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"flag"
	"os"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// runWithManyWorlds raises the number of worlds a property is tried on: each is small and quick. -rapid.checks wins.
func runWithManyWorlds(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", "3000"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// A13, A18: whatever the order of objects and of what they hold, the decision is equal.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		other := w.shuffled(t)
		a, b := decide.Decide(w.in, w.node), decide.Decide(other.in, other.node)
		checkInvariants(t, a)
		if !a.Equal(b) {
			t.Fatalf("decisions differ: %v\n%+v\n%+v", lb.Diff(a, b), a, b)
		}
	})
}

func TestWhatIsServedIsTheDecisionWithoutTheReasonsOfEndpoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		whole, served := decide.Decide(w.in, w.node), decide.Serve(w.in, w.node)
		if whole.Endpoints = nil; !whole.Equal(served) || served.Endpoints != nil {
			t.Fatalf("decisions differ:\n%+v\n%+v", whole, served)
		}
	})
}

// A4, A17, A18: whatever slices endpoints are in, once or twice, clients notice nothing, and each address has one answer.
func TestSlicingDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		other := w.cut(t).shuffled(t)
		a, b := decide.Decide(w.in, w.node), decide.Decide(other.in, other.node)
		if c := lb.Diff(a, b); !c.Empty() {
			t.Fatalf("decisions differ: %v", c)
		}
		if !slices.Equal(answers(a), answers(b)) {
			t.Fatalf("reasons differ:\n%v\n%v", answers(a), answers(b))
		}
	})
}

// answers are the reasons without the names of slices, each once.
func answers(d lb.Decision) []lb.EndpointReason {
	out := slices.Clone(d.Endpoints)
	for i := range out {
		out[i].Slice = ""
	}
	slices.SortFunc(out, lb.EndpointReason.Compare)
	return slices.Compact(out)
}

// Endpoints that are in no list make no difference to the lists, and reasons name exactly those that are in one.
func TestSelectedEndpointsAreTheListedBackends(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		d := decide.Decide(w.in, w.node)
		listed, selected := map[lb.BackendKey]bool{}, map[lb.BackendKey]bool{}
		for _, b := range d.Backends {
			if len(b.Lists) > 0 {
				listed[b.Key] = true
			}
		}
		for _, e := range d.Endpoints {
			if e.Selected {
				selected[lb.BackendKey{Port: e.Port.Key(), Address: e.Address}] = true
			}
		}
		for key := range listed {
			if !selected[key] {
				t.Errorf("backend %v is listed, no endpoint says so", key)
			}
		}
		if len(listed) != len(selected) || len(d.Endpoints) != len(w.in.Endpoints) {
			t.Errorf("%d listed, %d selected, %d of %d endpoints explained", len(listed), len(selected), len(d.Endpoints), len(w.in.Endpoints))
		}
	})
}

func TestDecideLeavesItsInputAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := brokenWorld(t)
		copied := w
		copied.in.Endpoints = slices.Clone(w.in.Endpoints)
		copied.in.Service.Ports = slices.Clone(w.in.Service.Ports)
		copied.in.Service.ExternalIPs = slices.Clone(w.in.Service.ExternalIPs)
		copied.in.Service.SourceRanges = slices.Clone(w.in.Service.SourceRanges)
		copied.node.NodePortIPs = slices.Clone(w.node.NodePortIPs)
		first := decide.Decide(w.in, w.node)
		if again := decide.Decide(copied.in, copied.node); !again.Equal(first) {
			t.Fatalf("the second answer differs: %v", lb.Diff(first, again))
		}
		if !slices.EqualFunc(w.in.Endpoints, copied.in.Endpoints, func(a, b lb.Endpoint) bool { return a.Address == b.Address && a.Slice == b.Slice }) ||
			!slices.Equal(w.in.Service.Ports, copied.in.Service.Ports) || !slices.Equal(w.in.Service.ExternalIPs, copied.in.Service.ExternalIPs) ||
			!slices.Equal(w.in.Service.SourceRanges, copied.in.Service.SourceRanges) || !slices.Equal(w.node.NodePortIPs, copied.node.NodePortIPs) {
			t.Fatal("the input changed")
		}
	})
}

// Any input has a decision that maps can publish, and the same one in any order.
func TestBrokenInputIsDecidedToo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := brokenWorld(t)
		d := decide.Decide(w.in, w.node)
		checkInvariants(t, d)
		if len(d.Endpoints) != len(w.in.Endpoints) {
			t.Errorf("%d of %d endpoints explained", len(d.Endpoints), len(w.in.Endpoints))
		}
		other := w.shuffled(t)
		if b := decide.Decide(other.in, other.node); !d.Equal(b) {
			t.Errorf("another order decides otherwise: %v", lb.Diff(d, b))
		}
	})
}
