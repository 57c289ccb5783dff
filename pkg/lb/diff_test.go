// SPDX-License-Identifier: Apache-2.0

package lb_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

var http = lb.PortKey{Name: "http", Protocol: lb.TCP}

func key(address string) lb.BackendKey {
	return lb.BackendKey{Port: http, Address: netip.MustParseAddrPort(address)}
}

// decision has one frontend and the given backends, all in its only tier.
func decision(backends ...string) lb.Decision {
	service := lb.ServiceName{Namespace: "default", Name: "web"}
	tier := lb.Tier{Name: lb.TierCluster}
	d := lb.Decision{Service: service}
	for _, b := range backends {
		tier.Backends = append(tier.Backends, key(b))
		d.Backends = append(d.Backends, lb.Backend{
			Key: key(b), Node: "n1", Zone: "a", State: lb.Active, Near: lb.TierZone, Lists: []lb.List{lb.ListCluster},
		})
	}
	side := lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster, Tiers: []lb.Tier{tier}}
	d.Frontends = []lb.Frontend{{
		Key:      lb.FrontendKey{Address: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: lb.TCP},
		Port:     lb.PortName{Service: service, Port: "http", Protocol: lb.TCP},
		Kind:     lb.KindClusterIP,
		Internal: side, External: side,
	}}
	return d
}

func TestChangesPrintThemselves(t *testing.T) {
	base := func() lb.Decision { return decision("10.1.0.1:80", "10.1.0.2:80") }
	for _, row := range []struct {
		name   string
		change func(*lb.Decision)
		want   []string
	}{
		{"nothing", func(*lb.Decision) {}, nil},
		{"reasons and problems are not the clients'", func(d *lb.Decision) {
			d.Endpoints = []lb.EndpointReason{{Reason: lb.ReasonNotReady}}
			d.Problems = []lb.Problem{{Object: "Service default/web"}}
		}, nil},
		{"one backend for another", func(d *lb.Decision) { *d = decision("10.1.0.2:80", "10.1.0.3:80") }, []string{
			"~ frontend 10.96.0.10:80/TCP ClusterIP default/web:http/TCP; " +
				"internal balance all (cluster 2) -> balance all (cluster 2), 1 in, 1 out; " +
				"external balance all (cluster 2) -> balance all (cluster 2), 1 in, 1 out",
			"- backend 10.1.0.1:80 http/TCP; state active; lists cluster; near zone; node \"n1\"; zone \"a\"",
			"+ backend 10.1.0.3:80 http/TCP; state active; lists cluster; near zone; node \"n1\"; zone \"a\"",
		}},
		{"a backend's state and place", func(d *lb.Decision) {
			b := &d.Backends[1]
			b.State, b.Lists, b.Node, b.Zone, b.Near = lb.Quiet, nil, "n2", "", lb.TierCluster
		}, []string{"~ backend 10.1.0.2:80 http/TCP; state active -> quiet; lists cluster -> none; near zone -> cluster; node n1 -> n2; zone a -> none"}},
		{"the rest of a frontend", func(d *lb.Decision) {
			f := &d.Frontends[0]
			f.Kind, f.Affinity, f.SourceRanges = lb.KindLoadBalancer, time.Minute, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
			f.External = lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints, List: lb.ListLocal}
		}, []string{"~ frontend 10.96.0.10:80/TCP LoadBalancer default/web:http/TCP; kind ClusterIP -> LoadBalancer; " +
			"external balance all (cluster 2) -> drop no-local-endpoints, 0 in, 2 out; affinity 0s -> 1m0s; ranges none -> 10.0.0.0/8"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			changed := base()
			row.change(&changed)
			c := lb.Diff(base(), changed)
			if got, want := c.String(), strings.Join(row.want, "\n"); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if c.Empty() != (len(row.want) == 0) || c.Service.String() != "default/web" {
				t.Errorf("empty %v, service %v", c.Empty(), c.Service)
			}
		})
	}
}

func TestAServiceThatCameOrWentIsAllChange(t *testing.T) {
	const line = " frontend 10.96.0.10:80/TCP ClusterIP default/web:http/TCP; internal balance all (cluster 1); external balance all (cluster 1)\n"
	const backend = " backend 10.1.0.1:80 http/TCP; state active; lists cluster; near zone; node \"n1\"; zone \"a\""
	d := decision("10.1.0.1:80")
	if got, want := lb.Diff(lb.Decision{}, d).String(), "+"+line+"+"+backend; got != want {
		t.Errorf("came:\n%s\nwant:\n%s", got, want)
	}
	gone := lb.Diff(d, lb.Decision{})
	if got, want := gone.String(), "-"+line+"-"+backend; got != want {
		t.Errorf("went:\n%s\nwant:\n%s", got, want)
	}
	if gone.Service != d.Service {
		t.Errorf("went: service %v", gone.Service)
	}
}

func TestEqualSeesEveryField(t *testing.T) {
	base := decision("10.1.0.1:80")
	if !base.Equal(decision("10.1.0.1:80")) {
		t.Fatal("a decision is not equal to itself")
	}
	for name, change := range map[string]func(*lb.Decision){
		"service":   func(d *lb.Decision) { d.Service.Name = "other" },
		"frontends": func(d *lb.Decision) { d.Frontends = nil },
		"key":       func(d *lb.Decision) { d.Frontends[0].Key.Protocol = lb.UDP },
		"port":      func(d *lb.Decision) { d.Frontends[0].Port.Port = "https" },
		"kind":      func(d *lb.Decision) { d.Frontends[0].Kind = lb.KindNodePort },
		"affinity":  func(d *lb.Decision) { d.Frontends[0].Affinity = 1 },
		"ranges":    func(d *lb.Decision) { d.Frontends[0].SourceRanges = make([]netip.Prefix, 1) },
		"action":    func(d *lb.Decision) { d.Frontends[0].Internal.Action = lb.Drop },
		"reason":    func(d *lb.Decision) { d.Frontends[0].Internal.Reason = lb.ReasonLocal },
		"list":      func(d *lb.Decision) { d.Frontends[0].External.List = lb.ListLocal },
		"tiers":     func(d *lb.Decision) { d.Frontends[0].External.Tiers = nil },
		"tier":      func(d *lb.Decision) { d.Frontends[0].External.Tiers[0].Name = lb.TierNode },
		"listed":    func(d *lb.Decision) { d.Frontends[0].External.Tiers[0].Backends = nil },
		"backends":  func(d *lb.Decision) { d.Backends = nil },
		"backend":   func(d *lb.Decision) { d.Backends[0].Key = key("10.1.0.1:81") },
		"node":      func(d *lb.Decision) { d.Backends[0].Node = "n2" },
		"zone":      func(d *lb.Decision) { d.Backends[0].Zone = "b" },
		"state":     func(d *lb.Decision) { d.Backends[0].State = lb.Quiet },
		"near":      func(d *lb.Decision) { d.Backends[0].Near = lb.TierNode },
		"lists":     func(d *lb.Decision) { d.Backends[0].Lists = nil },
		"endpoints": func(d *lb.Decision) { d.Endpoints = make([]lb.EndpointReason, 1) },
		"problems":  func(d *lb.Decision) { d.Problems = make([]lb.Problem, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			changed := decision("10.1.0.1:80")
			change(&changed)
			if base.Equal(changed) || changed.Equal(base) {
				t.Error("the difference is not seen")
			}
		})
	}
}

// The order of contracts.md: frontends by service, port, kind, address.
func TestFrontendsAreOrderedAsTheContractSays(t *testing.T) {
	make := func(port string, kind lb.Kind, address string) lb.Frontend {
		return lb.Frontend{Port: lb.PortName{Port: port}, Kind: kind, Key: lb.FrontendKey{Address: netip.MustParseAddrPort(address)}}
	}
	ordered := []lb.Frontend{
		make("a", lb.KindLoadBalancer, "10.0.0.1:1"),
		make("b", lb.KindClusterIP, "10.0.0.9:1"),
		make("b", lb.KindNodePort, "10.0.0.3:1"),
		make("b", lb.KindNodePort, "[2001:db8::1]:1"),
		make("b", lb.KindExternalIP, "10.0.0.2:1"),
		make("b", lb.KindLoadBalancer, "10.0.0.1:1"),
	}
	for i := range ordered[1:] {
		if ordered[i].Compare(ordered[i+1]) >= 0 || ordered[i+1].Compare(ordered[i]) <= 0 {
			t.Errorf("%v does not come before %v", ordered[i], ordered[i+1])
		}
	}
}
