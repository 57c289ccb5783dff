// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/metrics"
)

func (b *bench) publishAll(inputs ...lb.Input) {
	for _, in := range inputs {
		b.source.put(in)
	}
	b.Synced()
	b.settle()
}

// hinted has an endpoint for zone a and one for zone b.
func hinted(number int) lb.Input {
	in := input(number, 2)
	in.Endpoints[0].ZoneHints, in.Endpoints[1].ZoneHints = []string{"a"}, []string{"b"}
	return in
}

func TestReasonsInForceAreCountedAndShownWhereServicesAskForNearness(t *testing.T) {
	inBubble(t, func(b *bench) {
		plain, near, half := input(1, 2), hinted(2), hinted(3)
		half.Endpoints[1].ZoneHints = nil
		both := hinted(4)
		both.Service.ClusterIPs = append(both.Service.ClusterIPs, netip.MustParseAddr("fd96::4"))
		both.Service.Type, both.Service.External = lb.TypeLoadBalancer, lb.PolicyLocal
		both.Service.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.4"), netip.MustParseAddr("203.0.113.5")}
		b.publishAll(plain, near, half, both)
		state := b.count()
		want := map[metrics.Why]int{
			{Side: metrics.Internal, Reason: lb.ReasonAll}:                                   1,
			{Side: metrics.Internal, Reason: lb.ReasonSameZone}:                              2, // of IPv4
			{Side: metrics.Internal, Reason: lb.ReasonAll, Note: lb.NoteEndpointWithoutHint}: 1,
			{Side: metrics.Internal, Reason: lb.ReasonNoEndpoints}:                           1, // of IPv6
			{Side: metrics.External, Reason: lb.ReasonLocal}:                                 1, // of both addresses
		}
		if fmt.Sprint(state.Reasons) != fmt.Sprint(want) {
			t.Errorf("reasons %v, want %v", state.Reasons, want)
		}
		got := []string{}
		for _, a := range state.Topology {
			got = append(got, fmt.Sprintf("%v %s %s %s", a.Port, a.Side, a.Reason, a.Note))
		}
		wanted := []string{ // what is not as was asked for comes first
			"default/s3:http/TCP internal all endpoint-without-hint", "default/s2:http/TCP internal same-zone ",
			"default/s4:http/TCP external local ", "default/s4:http/TCP internal same-zone "}
		if fmt.Sprint(got) != fmt.Sprint(wanted) {
			t.Errorf("shown are %q, want %q", got, wanted)
		}
	})
}

func TestMoreServicesThanMetricsAreAllowedAreLeftOutButForThoseWithTrouble(t *testing.T) {
	inBubble(t, func(b *bench) {
		all := newTally()
		side := lb.Side{Reason: lb.ReasonSameZone}
		for i := range topologyLimit + 10 {
			name := serviceName(i)
			all.replace(name, summary{}, &lb.Decision{Frontends: []lb.Frontend{{Port: lb.PortName{Service: name}, Kind: lb.KindClusterIP, Internal: side}}})
		}
		last := lb.ServiceName{Namespace: "zz", Name: "last"}
		side.Reason = lb.ReasonNoTopologyMatch
		all.replace(last, summary{}, &lb.Decision{Frontends: []lb.Frontend{{Port: lb.PortName{Service: last}, Kind: lb.KindClusterIP, Internal: side}}})
		if shown, omitted := all.topology(); len(shown) != topologyLimit || omitted != 11 || shown[0].Port.Service != last {
			t.Errorf("%d shown, %d omitted, first %v", len(shown), omitted, shown[0])
		}
	})
}

// sync_proxy_rules_no_local_endpoints_total of kube-proxy.
func TestServicePortsThatDropForWantOfLocalEndpointsAreCounted(t *testing.T) {
	inBubble(t, func(b *bench) {
		remote := func(number int, change func(*lb.Service)) lb.Input {
			in := input(number, 3)
			in.Endpoints = in.Endpoints[1:] // not the one of this node
			change(&in.Service)
			return in
		}
		internal := func(s *lb.Service) { s.Internal = lb.PolicyLocal }
		external := func(s *lb.Service) {
			s.Type, s.External = lb.TypeLoadBalancer, lb.PolicyLocal
			s.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(s.ClusterIPs[0].As4()[3])}), netip.MustParseAddr("203.0.113.200")}
		}
		nowhere := remote(5, internal)
		nowhere.Endpoints = nil
		here := input(6, 1)
		internal(&here.Service)
		b.publishAll(remote(1, internal), remote(2, external), remote(3, func(s *lb.Service) { internal(s); external(s) }),
			remote(4, func(*lb.Service) {}), nowhere, here)
		if got := b.count().WithoutLocal; got[metrics.Internal] != 2 || got[metrics.External] != 2 {
			t.Errorf("got %v, want two of each", got)
		}
	})
}
