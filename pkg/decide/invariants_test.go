// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// failing is what testing.T and rapid.T share.
type failing interface {
	Helper()
	Errorf(format string, args ...any)
}

// checkInvariants holds for every decision about any input: what maps relies on.
func checkInvariants(t failing, d lb.Decision) {
	t.Helper()
	states := checkBackends(t, d)
	seen := map[lb.FrontendKey]bool{}
	for _, f := range d.Frontends {
		if seen[f.Key] {
			t.Errorf("frontend %v is there twice", f.Key)
		}
		seen[f.Key] = true
		if !f.Key.Address.IsValid() || f.Key.Address.Port() == 0 || f.Key.Address.Addr().Is4In6() || f.Affinity < 0 {
			t.Errorf("frontend %+v cannot be published", f)
		}
		if len(f.SourceRanges) > 0 && f.Kind != lb.KindLoadBalancer {
			t.Errorf("frontend %v of kind %s has source ranges", f.Key, f.Kind)
		}
		for _, p := range f.SourceRanges {
			if p.Addr().Is4() != f.Key.Address.Addr().Is4() || p.Bits() == 0 || p != p.Masked() {
				t.Errorf("frontend %v has source range %v", f.Key, p)
			}
		}
		checkSide(t, f, f.Internal, states)
		checkSide(t, f, f.External, states)
	}
	if !slices.IsSortedFunc(d.Frontends, lb.Frontend.Compare) {
		t.Errorf("frontends are not in order: %v", keys(d))
	}
	if !slices.IsSortedFunc(d.Endpoints, lb.EndpointReason.Compare) || !slices.IsSortedFunc(d.Problems, lb.Problem.Compare) {
		t.Errorf("endpoints or problems are not in order")
	}
}

func checkBackends(t failing, d lb.Decision) map[lb.BackendKey]lb.Backend {
	t.Helper()
	out := map[lb.BackendKey]lb.Backend{}
	for i, b := range d.Backends {
		if i > 0 && d.Backends[i-1].Key.Compare(b.Key) >= 0 {
			t.Errorf("backend %v is not in order or there twice", b.Key)
		}
		if len(b.Lists) > 0 && b.State == lb.Quiet {
			t.Errorf("backend %v is listed and %s", b.Key, b.State)
		}
		out[b.Key] = b
	}
	return out
}

func checkSide(t failing, f lb.Frontend, s lb.Side, backends map[lb.BackendKey]lb.Backend) {
	t.Helper()
	if (s.Action == lb.Balance) != (len(s.Tiers) > 0) || s.Reason == "" || s.List == "" {
		t.Errorf("frontend %v: side %+v", f.Key, s)
	}
	for _, tier := range s.Tiers {
		if len(tier.Backends) == 0 || tier.Name == "" {
			t.Errorf("frontend %v: empty tier %q", f.Key, tier.Name)
		}
		for i, key := range tier.Backends {
			b, known := backends[key]
			if !known || !slices.Contains(b.Lists, s.List) || key.Port != f.Port.Key() || key.Address.Addr().Is4() != f.Key.Address.Addr().Is4() {
				t.Errorf("frontend %v lists %v, whose backend is %+v", f.Key, key, b)
			}
			if i > 0 && tier.Backends[i-1].Compare(key) >= 0 {
				t.Errorf("frontend %v: tier %s is not in order", f.Key, tier.Name)
			}
		}
	}
}
