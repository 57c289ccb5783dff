// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/lb"
)

// What is listed of a Service without asking is what questions for its names are answered with.
func TestListedRecordsAreThoseOfAnswers(t *testing.T) {
	listed := 0
	rapid.Check(t, func(t *rapid.T) {
		of := func(label string, texts ...string) string { return rapid.SampledFrom(texts).Draw(t, label) }
		options := Options{Zones: []string{"cluster.local"}, TTL: 5, IgnoreEmpty: of("ignore empty", "no", "yes") == "yes"}
		if of("another zone", "no", "no", "yes") == "yes" {
			options.Zones = append(options.Zones, "prod.svc.cluster.local")
		}
		view := NewView(ViewOptions{Node: lb.Node{Name: "n1", Zone: "a"}, PodNames: of("named by pods", "no", "yes") == "yes"})
		s := randomService(t, of)
		view.Set(s)
		view.Synced()
		r := NewResponder(view, options)
		r.shuffle = func(int, func(int, int)) {}
		var got, want []Record
		for record := range r.Records(t.Context()) {
			got = append(got, record)
		}
		e, zone := view.services[s.Name], r.options.Zones[0]
		if r.isPlain(e, zone) {
			listed++
		}
		r.ask(t.Context(), e.names(zone), func(record Record) bool { want = append(want, record); return true })
		inOrder := func(a, b Record) int {
			return slices.Compare([]string{a.Name, a.Type, a.Data}, []string{b.Name, b.Type, b.Data})
		}
		slices.SortFunc(got, inOrder)
		slices.SortFunc(want, inOrder)
		if !slices.Equal(got, want) {
			t.Fatalf("listed:\n%v\nanswered:\n%v", got, want)
		}
	})
	if listed == 0 {
		t.Error("every Service was asked for")
	}
}

// randomService has endpoints with and without hostnames, of both families and elsewhere, some of them twice.
func randomService(t *rapid.T, of func(string, ...string) string) *lb.NamedService {
	s := &lb.NamedService{Name: lb.ServiceName{Namespace: "prod", Name: "web"}, Selection: lb.NameSelection(of("selection", "", "order", "prefer", "pin"))}
	ports := func(label string) (all []lb.NamedPort) {
		for i := range rapid.IntRange(0, 2).Draw(t, label) {
			all = append(all, lb.NamedPort{Name: fmt.Sprintf("p%d", i), Protocol: lb.TCP, Number: uint16(rapid.IntRange(0, 2).Draw(t, "number"))})
		}
		return all
	}
	switch of("kind", "ClusterIP", "headless", "headless", "no address", "external") {
	case "headless":
		s.Headless = true
	case "external":
		s.ExternalName = of("external", "www.example.com", "web.prod.svc.cluster.local", "192.0.2.1")
	case "ClusterIP":
		s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")}
	}
	s.Ports = ports("ports")
	for i := range rapid.IntRange(0, 3).Draw(t, "slices") {
		var endpoints []lb.NamedEndpoint
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			e := lb.NamedEndpoint{Place: lb.Place{Node: of("node", "n1", "n2"), Zone: of("zone", "a", "b")},
				Hostname: of("hostname", "", "", "db-0", "db-1", "10-1-0-1", "Odd"), Pod: of("pod", "", "web-0", "web.0")}
			if of("ready", "yes", "yes", "no") == "yes" {
				e.Is = lb.IsReady
			}
			switch of("address", "4", "4", "6", "6", "elsewhere") {
			case "4":
				e.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(rapid.IntRange(1, 3).Draw(t, "last"))})}
			case "6":
				e.Addresses = []netip.Addr{netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(rapid.IntRange(0, 2).Draw(t, "last"))})}
			default:
				e.Targets = []string{of("target", "a.example.com", "b.example.com")}
			}
			endpoints = append(endpoints, e)
		}
		s.Slices = append(s.Slices, lb.NewNamedSlice(fmt.Sprintf("s%d", i), ports("slice's ports"), endpoints...))
	}
	return s
}
