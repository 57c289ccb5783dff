// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"net/netip"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// C20, C21, A7 to A9, A18: for every first packet that any world can see, the decision is what the naive model says.
func TestDecisionsAreThoseOfTheNaiveModel(t *testing.T) {
	sources := ips("10.9.9.9", "172.16.0.9", "192.0.2.77", "203.0.113.8", "2001:db8:1::9", "2001:db8:2::9", "2001:db8:9::9", "2001:db8:5::9")
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		w.in.Service.Overflow = lb.Overflow{} // the model knows none: TestAnOverflowSharesOutWhatIsTooMuchAndNoMore
		d := decide.Decide(w.in, w.node)
		byKey := map[lb.FrontendKey]lb.Frontend{}
		for _, f := range d.Frontends {
			byKey[f.Key] = f
		}
		for _, pkt := range packets(w, sources) {
			got, want := answer(byKey, pkt), oracle(w, pkt)
			if got != want {
				t.Fatalf("packet %+v: decided %q, the naive model says %q", pkt, got, want)
			}
		}
	})
}

// packets are first packets to every address that the world has, on every port, from each side.
func packets(w world, sources []netip.Addr) []first {
	targets := slices.Concat(w.in.Service.ClusterIPs, w.in.Service.ExternalIPs, w.in.Service.LoadBalancerIPs, w.node.NodePortIPs)
	var out []first
	for _, dst := range targets {
		for _, dport := range []uint16{80, 81, 82, 30080, 30081, 30082} {
			for _, proto := range protocols {
				for i, src := range sources {
					if src.Is4() == dst.Is4() {
						out = append(out, first{dst: dst, dport: dport, proto: proto, inside: i%2 == 0, src: src})
						out = append(out, first{dst: dst, dport: dport, proto: proto, inside: i%2 == 1, src: src})
					}
				}
			}
		}
	}
	return out
}

// answer reads a decision as the datapath does.
func answer(frontends map[lb.FrontendKey]lb.Frontend, pkt first) string {
	f, ok := frontends[lb.FrontendKey{Address: netip.AddrPortFrom(pkt.dst, pkt.dport), Protocol: pkt.proto}]
	if !ok {
		return "pass"
	}
	contains := func(p netip.Prefix) bool { return p.Contains(pkt.src) }
	if len(f.SourceRanges) > 0 && !slices.ContainsFunc(f.SourceRanges, contains) {
		return "drop"
	}
	s := f.External
	if pkt.inside {
		s = f.Internal
	}
	if s.Action != lb.Balance {
		return string(s.Action)
	}
	var names []string
	for _, key := range s.Tiers[0].Backends {
		names = append(names, key.Address.String())
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}
