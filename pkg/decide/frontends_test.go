// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

func TestEveryKindOfFrontendIsListedInOrder(t *testing.T) {
	svc := public()
	svc.Ports = append(svc.Ports, lb.ServicePort{Name: "admin", Protocol: lb.TCP, Port: 81})
	node := n1()
	node.NodePortIPs = ips("192.0.2.5", "192.0.2.1")
	got := strings.Join(keys(decided(t, svc, node, "")), "\n")
	equal(t, "frontends", got, strings.Join([]string{
		"ClusterIP 10.96.0.10:81/TCP",
		"ExternalIP 198.51.100.7:81/TCP",
		"LoadBalancer 203.0.113.9:81/TCP",
		"ClusterIP 10.96.0.10:80/TCP",
		"NodePort 192.0.2.1:30080/TCP",
		"NodePort 192.0.2.5:30080/TCP",
		"ExternalIP 198.51.100.7:80/TCP",
		"LoadBalancer 203.0.113.9:80/TCP",
	}, "\n"))
}

// C18: the cluster IPs say which families a Service is served in.
func TestFrontendsKeepToTheFamiliesOfTheClusterIPs(t *testing.T) {
	node := n1()
	node.NodePortIPs = ips("192.0.2.1", "2001:db8:2::1")
	mixed := public()
	mixed.ExternalIPs = ips("198.51.100.7", "2001:db8:7::7")
	mixed.LoadBalancerIPs = ips("203.0.113.9", "2001:db8:9::9")
	for _, row := range []struct {
		name       string
		clusterIPs []string
		frontends  string
		problems   string
	}{
		{"IPv4", []string{"10.96.0.10"},
			"10.96.0.10:80 192.0.2.1:30080 198.51.100.7:80 203.0.113.9:80", "spec.externalIPs status.loadBalancer.ingress"},
		{"IPv6", []string{"2001:db8:96::10"},
			"[2001:db8:96::10]:80 [2001:db8:2::1]:30080 [2001:db8:7::7]:80 [2001:db8:9::9]:80", "spec.externalIPs status.loadBalancer.ingress"},
		{"both", []string{"10.96.0.10", "2001:db8:96::10"},
			"10.96.0.10:80 [2001:db8:96::10]:80 192.0.2.1:30080 [2001:db8:2::1]:30080 198.51.100.7:80 [2001:db8:7::7]:80 203.0.113.9:80 [2001:db8:9::9]:80", ""},
		{"no cluster IP: the others stay", nil,
			"192.0.2.1:30080 [2001:db8:2::1]:30080 198.51.100.7:80 [2001:db8:7::7]:80 203.0.113.9:80 [2001:db8:9::9]:80", "spec.clusterIP"},
	} {
		t.Run(row.name, func(t *testing.T) {
			mixed.ClusterIPs = ips(row.clusterIPs...)
			d := decided(t, mixed, node, "")
			var got, problems []string
			for _, f := range d.Frontends {
				got = append(got, f.Key.Address.String())
			}
			for _, p := range d.Problems {
				if p.Object != "Service default/web" || p.Message == "" {
					t.Errorf("problem %+v", p)
				}
				problems = append(problems, p.Field)
			}
			equal(t, "frontends", strings.Join(got, " "), row.frontends)
			equal(t, "problems", strings.Join(problems, " "), row.problems)
		})
	}
}

func TestOneKeyHasOneFrontend(t *testing.T) {
	for _, row := range []struct {
		name    string
		change  func(*lb.Service)
		key     string
		kind    lb.Kind
		port    string
		problem string
	}{
		{"external IP that is the load balancer's: guarded by source ranges, nothing lost",
			func(s *lb.Service) { s.ExternalIPs = s.LoadBalancerIPs }, "203.0.113.9:80/TCP", lb.KindLoadBalancer, "http", ""},
		{"external IP that is the cluster IP",
			func(s *lb.Service) { s.ExternalIPs = s.ClusterIPs }, "10.96.0.10:80/TCP", lb.KindClusterIP, "http", "spec.externalIPs"},
		{"node port on an external IP that is the node's, of another port",
			func(s *lb.Service) {
				s.ExternalIPs = ips("192.0.2.1")
				s.Ports = append(s.Ports, lb.ServicePort{Name: "other", Protocol: lb.TCP, Port: 30080})
			}, "192.0.2.1:30080/TCP", lb.KindExternalIP, "other", "spec.ports[].nodePort"},
		{"addresses given twice", func(s *lb.Service) { s.ExternalIPs = append(s.ExternalIPs, s.ExternalIPs...) },
			"198.51.100.7:80/TCP", lb.KindExternalIP, "http", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := public()
			row.change(&svc)
			d := decided(t, svc, n1(), "")
			f := frontend(t, d, row.key)
			if f.Kind != row.kind || f.Port.Port != row.port {
				t.Errorf("%s is %s of port %s, want %s of %s", row.key, f.Kind, f.Port.Port, row.kind, row.port)
			}
			var fields []string
			for _, p := range d.Problems {
				fields = append(fields, p.Field)
			}
			equal(t, "problems", strings.Join(fields, " "), row.problem)
		})
	}
}

// What the API server refuses costs the port, not the Service.
func TestPortsThatCannotBeServedAreNamed(t *testing.T) {
	svc := web()
	svc.Ports = append(svc.Ports,
		lb.ServicePort{Name: "zero", Protocol: lb.TCP},
		lb.ServicePort{Name: "icmp", Protocol: 1, Port: 7},
		lb.ServicePort{Name: "http", Protocol: lb.TCP, Port: 8081})
	d := decided(t, svc, n1(), "10.1.0.1 ready\n10.1.0.1 ready port=zero:1")
	equal(t, "frontends", strings.Join(keys(d), " "), "ClusterIP 10.96.0.10:80/TCP")
	if len(d.Problems) != 3 || len(d.Backends) != 1 {
		t.Errorf("problems %v, backends %v", d.Problems, d.Backends)
	}
}

func TestProblemsOfTheObjectsAreHandedOn(t *testing.T) {
	b, a := lb.Problem{Object: "EndpointSlice default/b", Field: "addressType"}, lb.Problem{Object: "EndpointSlice default/a"}
	d := decide.Decide(lb.Input{Service: web(), Problems: []lb.Problem{b, a, b}}, n1())
	if len(d.Problems) != 2 || d.Problems[0] != a || d.Problems[1] != b {
		t.Errorf("problems %v, want each once, in order", d.Problems)
	}
}

func TestSourceRangesGuardLoadBalancerAddresses(t *testing.T) {
	for _, row := range []struct {
		name   string
		ranges []string
		v4, v6 string
	}{
		{"none", nil, "[]", "[]"},
		{"each family its own", []string{"10.0.0.0/8", "2001:db8:1::/48"}, "[10.0.0.0/8]", "[2001:db8:1::/48]"},
		{"a family without any is unrestricted", []string{"10.0.0.0/8"}, "[10.0.0.0/8]", "[]"},
		{"a /0 lifts its family's restriction", []string{"10.0.0.0/8", "0.0.0.0/0", "2001:db8:1::/48"}, "[]", "[2001:db8:1::/48]"},
		{"sorted, masked, each once", []string{"172.16.9.9/12", "10.0.0.0/8", "172.16.0.0/12", "10.0.0.0/16"}, "[10.0.0.0/8 10.0.0.0/16 172.16.0.0/12]", "[]"},
		{"IPv4 in IPv6 spelling", []string{"::ffff:10.0.0.0/104"}, "[10.0.0.0/8]", "[]"},
		{"the node is in range: so are the load balancer addresses", []string{"192.0.2.0/24", "2001:db8:1::/48"},
			"[192.0.2.0/24 203.0.113.8/32 203.0.113.9/32]", "[2001:db8:1::/48]"},
		{"the node is in the IPv6 range", []string{"2001:db8:2::/48"}, "[]", "[2001:db8:2::/48 2001:db8:9::9/128]"},
		{"a second address of the node is not its own one", []string{"192.0.3.0/24"}, "[192.0.3.0/24]", "[]"},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := public()
			svc.ClusterIPs = ips("10.96.0.10", "2001:db8:96::10")
			svc.LoadBalancerIPs = ips("203.0.113.9", "203.0.113.8", "2001:db8:9::9")
			svc.SourceRanges = prefixes(row.ranges...)
			node := n1()
			node.Addresses = ips("192.0.2.1", "192.0.3.1", "2001:db8:2::1")
			d := decided(t, svc, node, "")
			equal(t, "IPv4", sprint(frontend(t, d, "203.0.113.9:80/TCP").SourceRanges), row.v4)
			equal(t, "IPv6", sprint(frontend(t, d, "[2001:db8:9::9]:80/TCP").SourceRanges), row.v6)
		})
	}
}

// spec.healthCheckNodePort reports distinct addresses of ready endpoints here, never the terminating ones, and each family for
// itself, if the Service is served in it.
func TestLocalReadyCountsTheAddressesOfAFamilyOnce(t *testing.T) {
	in := lb.Input{Service: public(), Endpoints: endpoints(t, `
		10.1.0.1 ready node=n1
		10.1.0.1 ready node=n1 port=admin:81
		10.1.0.2 published node=n1
		10.1.0.3 leaving node=n1
		10.1.0.4 ready node=n2
		10.1.0.5 ready
		2001:db8::1 ready node=n1`)}
	for _, row := range []struct {
		clusterIPs []netip.Addr
		v4         bool
		count      int
		ok         bool
	}{
		{ips("10.96.0.10"), true, 2, true},
		{ips("10.96.0.10"), false, 0, false},
		{ips("10.96.0.10", "2001:db8:96::10"), false, 1, true},
		{ips("2001:db8:96::10"), true, 0, false},
	} {
		in.Service.ClusterIPs = row.clusterIPs
		if got, ok := decide.LocalReady(in, n1(), row.v4); got != row.count || ok != row.ok {
			t.Errorf("cluster IPs %v, IPv4 %v: %d local ready endpoints, served %v; want %d, %v", row.clusterIPs, row.v4, got, ok, row.count, row.ok)
		}
	}
}

// k3s gives load balancers the addresses of nodes, and an external IP may be one: what the node has itself stays the node's but for the
// Service's ports. A ClusterIP is the Service's even where somebody put it on a device.
func TestAddressesThatTheNodeHasItselfAreSaidToBeItsOwn(t *testing.T) {
	svc := public()
	svc.ClusterIPs = ips("10.96.0.10", "2001:db8:96::10")
	svc.ExternalIPs = ips("198.51.100.7", "198.51.100.8", "2001:db8:7::7", "2001:db8:7::8")
	svc.LoadBalancerIPs = ips("203.0.113.9", "203.0.113.10", "2001:db8:9::9", "2001:db8:9::10")
	node := n1()
	node.Addresses = ips("203.0.113.9", "2001:db8:9::9")
	node.NodePortIPs = ips("203.0.113.9")
	node.HostIPs = ips("198.51.100.7", "2001:db8:7::7", "10.96.0.10")
	own := []string{}
	for _, f := range decided(t, svc, node, "").Frontends {
		if f.OnHost {
			own = append(own, string(f.Kind)+" "+f.Key.Address.String())
		}
	}
	equal(t, "frontends on the node's own addresses", strings.Join(own, ", "), "ExternalIP 198.51.100.7:80, ExternalIP [2001:db8:7::7]:80, "+
		"LoadBalancer 203.0.113.9:80, LoadBalancer [2001:db8:9::9]:80")
}
