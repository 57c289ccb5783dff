// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// D16: what packets are about to lose has no name any more, and what they do not have yet has none either.
func TestAViewThatIsNarrowedHasWhatBothStatesHave(t *testing.T) {
	before, after := named("prod", "web"), named("prod", "web")
	before.ClusterIPs, after.ClusterIPs = addrs("10.96.0.10"), addrs("10.96.0.10")
	before.Slices = []lb.NamedSlice{{Name: "a", Endpoints: []lb.NamedEndpoint{ready("10.244.1.1", ""), ready("10.244.1.2", "")}}}
	after.Slices = []lb.NamedSlice{{Name: "b", Endpoints: []lb.NamedEndpoint{ready("10.244.1.2", ""), ready("10.244.1.3", "")}}}
	v := dns.NewView(dns.ViewOptions{})
	r := dns.NewResponder(v, dns.Options{Zones: []string{"cluster.local"}})
	v.Synced()
	want := func(state, have string) {
		t.Helper()
		for _, last := range []string{"1", "2", "3"} {
			m := r.Answer(t.Context(), query("10-244-1-"+last+".web.prod.svc.cluster.local", "A"), dns.Client{})
			if got := len(m.Answer) == 1; got != strings.Contains(have, last) {
				t.Errorf("%s: 10.244.1.%s has a name: %v", state, last, got)
			}
		}
	}
	v.Narrow(after)
	want("before there is any", "")
	v.Set(before)
	want("before", "12")
	v.Narrow(after)
	want("between", "2")
	v.Set(after)
	want("after", "23")
}
