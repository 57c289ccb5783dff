// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A18: the same address in several slices is one backend, and the copy with the best condition counts, in either order.
func TestTheBestCopyOfAnEndpointCounts(t *testing.T) {
	order := []string{"ready", "published", "leaving", "unready", "dead"}
	outcome := map[string]string{
		"ready": "balance all cluster: 10.1.0.1", "published": "balance all cluster: 10.1.0.1",
		"leaving": "balance terminating cluster: 10.1.0.1", "unready": "reject no-endpoints", "dead": "reject no-endpoints",
	}
	for i, better := range order {
		for _, worse := range order[i:] {
			t.Run(better+" and "+worse, func(t *testing.T) {
				one := "10.1.0.1 slice=web-1 node=n1 " + better
				two := "10.1.0.1 slice=web-2 node=n1 " + worse
				d := decided(t, web(), n1(), one+"\n"+two)
				if turned := decided(t, web(), n1(), two+"\n"+one); !turned.Equal(d) {
					t.Errorf("the other order: %v", lb.Diff(d, turned))
				}
				if len(d.Backends) != 1 {
					t.Errorf("%d backends, want 1", len(d.Backends))
				}
				equal(t, "side", show(d.Frontends[0].Internal), outcome[better])
			})
		}
	}
}

// A18: all that the copy in force says holds, and nothing of the other: node, zone, hints.
func TestTheCopyInForceGivesNodeZoneAndHints(t *testing.T) {
	for _, row := range []struct {
		name, text, node, zone, want string
	}{
		{"the condition comes first", `
			10.1.0.1 leaving slice=a node=n1 zone=a forZone=a
			10.1.0.1 ready slice=b node=n2 zone=b forZone=b
			10.1.0.2 ready node=n3 zone=a forZone=a`, "n2", "b", "balance same-zone zone: 10.1.0.2"},
		{"a known node beats none", `
			10.1.0.1 ready slice=a zone=b
			10.1.0.1 ready slice=b node=n2`, "n2", "", "balance all cluster: 10.1.0.1"},
		{"a known zone beats none", `
			10.1.0.1 ready slice=a node=n2
			10.1.0.1 ready slice=b node=n2 zone=b`, "n2", "b", "balance all cluster: 10.1.0.1"},
		{"then the lower name", `
			10.1.0.1 ready slice=a node=n3 zone=a
			10.1.0.1 ready slice=b node=n2 zone=b`, "n2", "b", "balance all cluster: 10.1.0.1"},
		{"one address on two ports is two backends", `
			10.1.0.1 ready node=n2 zone=b
			10.1.0.1 ready node=n2 zone=b port=http:9080`, "n2", "b", "balance all cluster: 10.1.0.1 10.1.0.1:9080"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := decided(t, web(), n1(), row.text)
			if b := d.Backends[0]; b.Node != row.node || b.Zone != row.zone {
				t.Errorf("backend is on node %q in zone %q, want %q, %q", b.Node, b.Zone, row.node, row.zone)
			}
			equal(t, "side", show(d.Frontends[0].Internal), row.want)
		})
	}
}

// A1, A12, A13: a Service port has the endpoints of every slice with its name and protocol, whoever made the slice.
// A15: each backend keeps the number of its own slice. C11: the unnamed port is a name like any other.
func TestEndpointsJoinServicePortsByNameAndProtocol(t *testing.T) {
	svc := web()
	svc.Ports = []lb.ServicePort{
		{Name: "http", Protocol: lb.TCP, Port: 80},
		{Name: "", Protocol: lb.TCP, Port: 81},
		{Name: "dns", Protocol: lb.UDP, Port: 53},
		{Name: "dns", Protocol: lb.TCP, Port: 53},
		{Name: "none", Protocol: lb.SCTP, Port: 9},
	}
	d := decided(t, svc, n1(), `
		10.1.0.1 ready slice=web-1
		10.1.0.2 ready slice=web-2
		10.1.0.3 ready slice=web-3 port=http:9080
		10.1.0.1 ready slice=web-4 port=:8081
		10.1.0.1 ready slice=web-5 port=dns:5353 udp
		10.1.0.2 ready slice=web-5 port=dns:5354
		10.1.0.1 ready slice=web-6 port=other:1
		10.1.0.1 ready slice=web-6 port=http:1 udp`)
	for key, want := range map[string]string{
		"10.96.0.10:80/TCP": "balance all cluster: 10.1.0.1 10.1.0.2 10.1.0.3:9080",
		"10.96.0.10:81/TCP": "balance all cluster: 10.1.0.1:8081",
		"10.96.0.10:53/UDP": "balance all cluster: 10.1.0.1:5353",
		"10.96.0.10:53/TCP": "balance all cluster: 10.1.0.2:5354",
		"10.96.0.10:9/SCTP": "reject no-endpoints",
	} {
		equal(t, key, show(frontend(t, d, key).Internal), want)
	}
	if len(d.Backends) != 6 {
		t.Errorf("%d backends, want 6: those of ports the Service has", len(d.Backends))
	}
}

// C1, C2, C3: the Service of fixtures/rgw.yaml. The slice's number counts, any node port does.
func TestServiceWithHandMadeSlice(t *testing.T) {
	svc := web()
	svc.Type = lb.TypeNodePort
	svc.Ports = []lb.ServicePort{{Name: "rgw", Protocol: lb.TCP, Port: 9000, NodePort: 9000}}
	d := decided(t, svc, n1(), "1.1.1.1 ready port=rgw:22\n1.1.1.2 ready port=rgw:22")
	for _, key := range []string{"10.96.0.10:9000/TCP", "192.0.2.1:9000/TCP"} {
		f := frontend(t, d, key)
		equal(t, key+" inside", show(f.Internal), "balance all cluster: 1.1.1.1:22 1.1.1.2:22")
		equal(t, key+" outside", show(f.External), "balance all cluster: 1.1.1.1:22 1.1.1.2:22")
	}
}

// many are n ready endpoints in slices of the given size.
func many(n, size int) []lb.Endpoint {
	out := make([]lb.Endpoint, n)
	for i := range out {
		out[i] = lb.Endpoint{
			Port: lb.PortKey{Name: "http", Protocol: lb.TCP}, Ready: true, Serving: true,
			Node: fmt.Sprintf("n%d", i%7), Zone: string(rune('a' + i%3)), Slice: fmt.Sprintf("web-%d", i/size),
		}
		out[i].Address = ipPort(i)
	}
	return out
}

// A4: any number of endpoints in slices of any size gives the same backends.
func TestTheCutIntoSlicesDoesNotMatter(t *testing.T) {
	for _, n := range []int{1, 100, 101, 1000, 1001, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			small := decide.Decide(lb.Input{Service: web(), Endpoints: many(n, 100)}, n1())
			large := decide.Decide(lb.Input{Service: web(), Endpoints: many(n, 1000)}, n1())
			checkInvariants(t, small)
			if len(small.Backends) != n {
				t.Errorf("%d backends, want %d", len(small.Backends), n)
			}
			if c := lb.Diff(small, large); !c.Empty() {
				t.Errorf("slices of 1000 instead of 100: %.300v", c)
			}
		})
	}
}

// A16, A17: while slices are repacked an endpoint may be in two of them, or in another: no backend is lost or doubled.
func TestRepackingSlicesLosesNoBackend(t *testing.T) {
	old := many(1000, 100)
	want := decide.Decide(lb.Input{Service: web(), Endpoints: old}, n1())
	both := append(many(1000, 1000), old...)
	if c := lb.Diff(want, decide.Decide(lb.Input{Service: web(), Endpoints: both}, n1())); !c.Empty() {
		t.Errorf("with old and new slices at once: %.300v", c)
	}
	if c := lb.Diff(want, decide.Decide(lb.Input{Service: web(), Endpoints: many(1000, 1000)}, n1())); !c.Empty() {
		t.Errorf("with the new slices alone: %.300v", c)
	}
	replaced := many(2000, 100)[1000:]
	d := decide.Decide(lb.Input{Service: web(), Endpoints: replaced}, n1())
	if len(d.Backends) != 1000 || d.Backends[0].Key.Address != replaced[0].Address {
		t.Errorf("after full replacement: %d backends from %v on", len(d.Backends), d.Backends[0].Key)
	}
}

// C18: each family of a dual-stack Service has its own endpoints, hints and fallbacks.
func TestFamiliesAreDecidedEachOnItsOwn(t *testing.T) {
	svc := public()
	svc.ClusterIPs = ips("2001:db8:96::10", "10.96.0.10")
	svc.External = lb.PolicyLocal
	d := decided(t, svc, n1(), `
		10.1.0.1 leaving node=n1
		10.1.0.2 leaving node=n2
		2001:db8::1 ready node=n2 zone=a forZone=a
		2001:db8::2 ready node=n3 zone=b forZone=b`)
	equal(t, "IPv4", show(frontend(t, d, "10.96.0.10:80/TCP").Internal), "balance terminating cluster: 10.1.0.1 10.1.0.2")
	equal(t, "IPv4 outside", show(frontend(t, d, "192.0.2.1:30080/TCP").External), "balance local-terminating node: 10.1.0.1")
	v6 := show(frontend(t, d, "[2001:db8:96::10]:80/TCP").Internal)
	equal(t, "IPv6", strings.ReplaceAll(v6, ":8080", ""), "balance same-zone zone: [2001:db8::1]")
}

func TestAddressesHaveOneSpelling(t *testing.T) {
	svc := web()
	svc.ClusterIPs = ips("::ffff:10.96.0.10")
	d := decided(t, svc, n1(), "::ffff:10.1.0.1 ready slice=a\n10.1.0.1 leaving slice=b")
	equal(t, "side", show(frontend(t, d, "10.96.0.10:80/TCP").Internal), "balance all cluster: 10.1.0.1")
}

func TestAffinityIsThePortsOwn(t *testing.T) {
	svc := public()
	svc.Affinity = 3 * time.Hour
	for _, f := range decided(t, svc, n1(), "").Frontends {
		if f.Affinity != 3*time.Hour {
			t.Errorf("frontend %v has affinity %v", f.Key, f.Affinity)
		}
	}
}
