// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// web is the Service of most tests: one TCP port, cluster IP only.
func web() lb.Service {
	return lb.Service{
		Name:       lb.ServiceName{Namespace: "default", Name: "web"},
		Type:       lb.TypeClusterIP,
		ClusterIPs: ips("10.96.0.10"),
		Ports:      []lb.ServicePort{{Name: "http", Protocol: lb.TCP, Port: 80}},
		Internal:   lb.PolicyCluster,
		External:   lb.PolicyCluster,
	}
}

// public is web with every kind of frontend.
func public() lb.Service {
	svc := web()
	svc.Type = lb.TypeLoadBalancer
	svc.ExternalIPs = ips("198.51.100.7")
	svc.LoadBalancerIPs = ips("203.0.113.9")
	svc.Ports[0].NodePort = 30080
	return svc
}

// n1 is the node that decides, in zone a.
func n1() lb.Node {
	return lb.Node{Name: "n1", Zone: "a", Region: "r1", Addresses: ips("192.0.2.1"), NodePortIPs: ips("192.0.2.1")}
}

func ips(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// endpoints reads one endpoint a line: address, then words in any order. The states are ready, unready (not ready, not
// terminating), leaving (serving while terminating), dead (terminating, not serving) and published (ready while
// terminating). Other words are label=key:value (of its Node), node=, zone=, region=, forNode= and forZone= (hints, with commas), slice=, weight=, port=name:number
// and udp. Without a port it is http:8080 over TCP.
func endpoints(t testing.TB, text string) []lb.Endpoint {
	t.Helper()
	var out []lb.Endpoint
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		e := lb.Endpoint{Port: lb.PortKey{Name: "http", Protocol: lb.TCP}}
		number := uint16(8080)
		for _, word := range words[1:] {
			if err := readWord(&e, &number, word); err != nil {
				t.Fatalf("read endpoint %q: %v", line, err)
			}
		}
		e.Address = netip.AddrPortFrom(netip.MustParseAddr(words[0]), number)
		out = append(out, e)
	}
	return out
}

func readWord(e *lb.Endpoint, number *uint16, word string) error {
	name, value, _ := strings.Cut(word, "=")
	switch name {
	case "ready":
		e.Ready, e.Serving = true, true
	case "unready":
	case "leaving":
		e.Serving, e.Terminating = true, true
	case "dead":
		e.Terminating = true
	case "published":
		e.Ready, e.Serving, e.Terminating = true, true, true
	case "udp":
		e.Port.Protocol = lb.UDP
	case "node":
		e.Node = value
	case "zone":
		e.Zone = value
	case "region":
		e.Region = value
	case "forNode":
		e.NodeHints = strings.Split(value, ",")
	case "forZone":
		e.ZoneHints = strings.Split(value, ",")
	case "weight":
		e.Weight.Given = true
		_, err := fmt.Sscan(value, &e.Weight.Value)
		return err
	case "slice":
		e.Slice = value
	case "label":
		key, value, _ := strings.Cut(value, ":")
		e.Labels = append(e.Labels, lb.Label{Key: key, Value: value})
		slices.SortFunc(e.Labels, lb.Label.Compare)
	case "port":
		text, digits, _ := strings.Cut(value, ":")
		e.Port.Name = text
		_, err := fmt.Sscan(digits, number)
		return err
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return nil
}

// show prints a side as "balance same-zone zone: 10.1.0.1 10.1.0.2"; ports are left out when all are 8080.
func show(s lb.Side) string {
	out := fmt.Sprintf("%s %s", s.Action, s.Reason)
	for _, t := range s.Tiers {
		out += fmt.Sprintf(" %s:", t.Name)
		for _, b := range t.Backends {
			out += " " + strings.TrimSuffix(b.Address.String(), ":8080")
		}
	}
	return out
}

// frontend finds the frontend with that key, "10.96.0.10:80/TCP".
func frontend(t testing.TB, d lb.Decision, key string) lb.Frontend {
	t.Helper()
	for _, f := range d.Frontends {
		if f.Key.String() == key {
			return f
		}
	}
	t.Fatalf("no frontend %s in %v", key, keys(d))
	return lb.Frontend{}
}

func keys(d lb.Decision) []string {
	var out []string
	for _, f := range d.Frontends {
		out = append(out, fmt.Sprintf("%s %v", f.Kind, f.Key))
	}
	return out
}

func decided(t testing.TB, svc lb.Service, node lb.Node, text string) lb.Decision {
	t.Helper()
	d := decide.Decide(lb.Input{Service: svc, Endpoints: endpoints(t, text)}, node)
	checkInvariants(t, d)
	return d
}

func equal(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func sprint(v any) string { return fmt.Sprint(v) }

// ipPort is the address of the i-th of many backends.
func ipPort(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
}
