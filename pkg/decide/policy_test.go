// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Traffic policies Local: the rest of the fallback table, and which client gets which list (B19).
func TestTrafficPolicies(t *testing.T) {
	const (
		spread = `
			10.1.0.1 ready node=n1 zone=a
			10.1.0.2 ready node=n2 zone=b`
		remote      = "10.1.0.2 ready node=n2 zone=b"
		hinted      = "10.1.0.1 ready node=n1 zone=a forZone=b\n10.1.0.2 ready node=n2 zone=a forZone=a"
		localLeaves = `
			10.1.0.1 leaving node=n1 zone=a
			10.1.0.2 ready node=n2 zone=b
			10.1.0.3 dead node=n1 zone=a`
		allLeave = "10.1.0.1 leaving node=n1\n10.1.0.2 leaving node=n2"
		both     = "balance all cluster: 10.1.0.1 10.1.0.2"
		own      = "balance local node: 10.1.0.1"
	)
	for _, row := range []struct {
		name               string
		internal, external lb.TrafficPolicy
		text               string
		clusterIP          string // either side
		pod, outside       string // of the external frontends
	}{
		{"both Cluster", "Cluster", "Cluster", spread, both, both, both},
		{"unset is Cluster", "", "", spread, both, both, both},
		{"eTP Local: pods and the node take the short cut", "Cluster", "Local", spread, both, both, own},
		{"eTP Local, nothing local: drop from outside only", "Cluster", "Local", remote,
			"balance all cluster: 10.1.0.2", "balance all cluster: 10.1.0.2", "drop no-local-endpoints"},
		{"eTP Local, nothing anywhere: reject", "Cluster", "Local", "10.1.0.1 unready node=n1",
			"reject no-endpoints", "reject no-endpoints", "reject no-endpoints"},
		{"eTP Local ignores hints outside, pods obey them", "Cluster", "Local", hinted,
			"balance same-zone zone: 10.1.0.2", "balance same-zone zone: 10.1.0.2", own},
		{"eTP Local: remote ready, local terminating", "Cluster", "Local", localLeaves,
			"balance all cluster: 10.1.0.2", "balance all cluster: 10.1.0.2", "balance local-terminating node: 10.1.0.1"},
		{"iTP Local", "Local", "Cluster", spread, own, both, both},
		{"iTP Local ignores hints on the cluster IP only", "Local", "Cluster", hinted,
			own, "balance same-zone zone: 10.1.0.2", "balance same-zone zone: 10.1.0.2"},
		{"iTP Local, nothing local: drop", "Local", "Cluster", remote,
			"drop no-local-endpoints", "balance all cluster: 10.1.0.2", "balance all cluster: 10.1.0.2"},
		{"iTP Local, nothing anywhere: reject", "Local", "Local", "", "reject no-endpoints", "reject no-endpoints", "reject no-endpoints"},
		{"iTP Local, local terminating", "Local", "Local", localLeaves,
			"balance local-terminating node: 10.1.0.1", "balance all cluster: 10.1.0.2", "balance local-terminating node: 10.1.0.1"},
		{"none ready anywhere: each list falls back by itself", "Local", "Local", allLeave,
			"balance local-terminating node: 10.1.0.1", "balance terminating cluster: 10.1.0.1 10.1.0.2", "balance local-terminating node: 10.1.0.1"},
		{"only remote ones terminating: drop", "Local", "Local", "10.1.0.2 leaving node=n2",
			"drop no-local-endpoints", "balance terminating cluster: 10.1.0.2", "drop no-local-endpoints"},
		{"an endpoint without nodeName is never local", "Local", "Local", "10.1.0.2 ready",
			"drop no-local-endpoints", "balance all cluster: 10.1.0.2", "drop no-local-endpoints"},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := public()
			svc.Internal, svc.External = row.internal, row.external
			d := decided(t, svc, n1(), row.text)
			f := frontend(t, d, "10.96.0.10:80/TCP")
			equal(t, "cluster IP, inside", show(f.Internal), row.clusterIP)
			equal(t, "cluster IP, outside", show(f.External), row.clusterIP)
			for _, key := range []string{"192.0.2.1:30080/TCP", "198.51.100.7:80/TCP", "203.0.113.9:80/TCP"} {
				f := frontend(t, d, key)
				equal(t, key+" inside", show(f.Internal), row.pod)
				equal(t, key+" outside", show(f.External), row.outside)
			}
		})
	}
}

func TestExternalPolicyLocalCountsForSomeTypesOnly(t *testing.T) {
	const remote = "10.1.0.2 ready node=n2"
	service := func(kind lb.ServiceType, external ...string) lb.Service {
		svc := public()
		svc.Type, svc.External, svc.ExternalIPs = kind, lb.PolicyLocal, ips(external...)
		return svc
	}
	for _, row := range []struct {
		name string
		svc  lb.Service
		want lb.Action
	}{
		{"LoadBalancer", service(lb.TypeLoadBalancer), lb.Drop},
		{"NodePort", service(lb.TypeNodePort), lb.Drop},
		{"ClusterIP with external IP", service(lb.TypeClusterIP, "198.51.100.7"), lb.Drop},
		{"ClusterIP with an external IP of the other family", service(lb.TypeClusterIP, "2001:db8::7"), lb.Drop},
		{"ClusterIP without", service(lb.TypeClusterIP), lb.Balance},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := decided(t, row.svc, n1(), remote)
			if got := frontend(t, d, "203.0.113.9:80/TCP").External.Action; got != row.want {
				t.Errorf("load balancer address from outside: %s, want %s", got, row.want)
			}
		})
	}
}

// A node without a name or an endpoint without nodeName: nothing is local, and nothing is next to anything.
func TestUnknownPlacesAreNowhere(t *testing.T) {
	svc := web()
	svc.Internal = lb.PolicyLocal
	d := decided(t, svc, lb.Node{}, "10.1.0.1 ready")
	equal(t, "side", show(d.Frontends[0].Internal), "drop no-local-endpoints")
	if got := d.Backends[0].Near; got != lb.TierCluster {
		t.Errorf("near is %s, want %s", got, lb.TierCluster)
	}
}

// A11: how near a backend is comes from node, zone and region, whatever list it is in.
func TestBackendsSayHowNearTheyAre(t *testing.T) {
	d := decided(t, web(), n1(), `
		10.1.0.1 ready node=n1 zone=a region=r1
		10.1.0.2 ready node=n2 zone=a region=r1
		10.1.0.3 ready node=n3 zone=b region=r1
		10.1.0.4 ready node=n4 zone=c region=r2
		10.1.0.5 leaving node=n1
		10.1.0.6 unready zone=a
		10.1.0.7 dead`)
	want := []struct {
		near  lb.TierName
		state lb.State
		lists int
	}{{"node", "active", 1}, {"zone", "active", 1}, {"region", "active", 1}, {"cluster", "active", 1},
		{"node", "draining", 0}, {"zone", "quiet", 0}, {"cluster", "quiet", 0}}
	if len(d.Backends) != len(want) {
		t.Fatalf("%d backends, want %d", len(d.Backends), len(want))
	}
	for i, b := range d.Backends {
		if b.Near != want[i].near || b.State != want[i].state || len(b.Lists) != want[i].lists {
			t.Errorf("backend %v: near %s, %s, lists %v; want %+v", b.Key, b.Near, b.State, b.Lists, want[i])
		}
	}
}

// The lists a backend is in are those that some frontend asks for: session affinity relies on it.
func TestBackendsNameTheListsTheyAreIn(t *testing.T) {
	const text = "10.1.0.1 ready node=n1\n10.1.0.2 ready node=n2"
	clusterOnly, localOnly, mixed := web(), web(), public()
	localOnly.Internal = lb.PolicyLocal
	mixed.External = lb.PolicyLocal
	for _, row := range []struct {
		name string
		svc  lb.Service
		want [2]string
	}{
		{"cluster only", clusterOnly, [2]string{"[cluster]", "[cluster]"}},
		{"local only", localOnly, [2]string{"[local]", "[]"}},
		{"both", mixed, [2]string{"[cluster local]", "[cluster]"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := decided(t, row.svc, n1(), text)
			for i, b := range d.Backends {
				equal(t, b.Key.String(), sprint(b.Lists), row.want[i])
			}
		})
	}
}
