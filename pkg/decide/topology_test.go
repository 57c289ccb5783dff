// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sort"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

const (
	hostname = "kubernetes.io/hostname"
	zone     = "topology.kubernetes.io/zone"
	region   = "topology.kubernetes.io/region"
)

// placed is the node that decides, with the labels that a Node of a cloud has.
func placed() lb.Node {
	node := n1()
	node.Labels = lb.NewLabels(map[string]string{hostname: "n1", zone: "a", region: "r1"})
	return node
}

func keyed(keys ...string) lb.Service {
	svc := web()
	svc.TopologyKeys = keys
	return svc
}

// at is the words of an endpoint on a Node with all three labels.
func at(node, z, r string) string {
	return fmt.Sprintf("node=%s zone=%s region=%s label=%s:%s label=%s:%s label=%s:%s", node, z, r, hostname, node, zone, z, region, r)
}

// B1 to B8, B11 to B13: one row for each of the rules, in the order of the requirements.
func TestTopologyKeysDecideByTheFirstThatMatches(t *testing.T) {
	onN1, onN2, inB, far := "10.1.0.1 ready "+at("n1", "a", "r1"), "10.1.0.2 ready "+at("n2", "a", "r1"), "10.1.0.3 ready "+at("n3", "b", "r1"), "10.1.0.4 ready "+at("n4", "z", "r2")
	unlabelled := n1()
	unlabelled.Zone, unlabelled.Region = "", ""
	unknown := lb.Node{Name: "n1"}
	racked := placed()
	racked.Labels = lb.NewLabels(map[string]string{"rack": "7", zone: "a"})
	empty := placed()
	empty.Labels = lb.NewLabels(map[string]string{"rack": ""})
	for _, row := range []struct {
		name      string
		keys      []string
		node      lb.Node
		endpoints []string
		want      string
	}{
		{"B1: the first key with a match decides", []string{zone, region}, placed(), []string{onN2, inB, far}, "balance same-zone zone: 10.1.0.2"},
		{"B1: the order of the keys is theirs", []string{region, zone}, placed(), []string{onN2, inB, far}, "balance same-region region: 10.1.0.2 10.1.0.3"},
		{"B1: an endpoint that is not ready is no match", []string{zone, region}, placed(), []string{"10.1.0.2 unready " + at("n2", "a", "r1"), inB},
			"balance same-region region: 10.1.0.3"},
		{"B2: no match, no endpoint", []string{zone}, placed(), []string{inB, far}, "reject no-topology-match"},
		{"B2: no endpoint at all is another reason", []string{zone}, placed(), nil, "reject no-endpoints"},
		{"B3: any, when nothing else matches", []string{hostname, "*"}, placed(), []string{inB, far}, "balance all cluster: 10.1.0.3 10.1.0.4"},
		{"B3: any alone", []string{"*"}, placed(), []string{onN1, far}, "balance all cluster: 10.1.0.1 10.1.0.4"},
		{"B4: no key, no constraint", nil, placed(), []string{onN1, far}, "balance all cluster: 10.1.0.1 10.1.0.4"},
		{"B5: this node", []string{hostname}, placed(), []string{onN1, onN2}, "balance same-node node: 10.1.0.1"},
		{"B5: or nothing leaves it", []string{hostname}, placed(), []string{onN2, inB}, "reject no-topology-match"},
		{"B6: all four levels, the node's", []string{hostname, zone, region}, placed(), []string{onN1, onN2, inB, far}, "balance same-node node: 10.1.0.1"},
		{"B6: then the zone's", []string{hostname, zone, region}, placed(), []string{onN2, inB, far}, "balance same-zone zone: 10.1.0.2"},
		{"B6: then the region's", []string{hostname, zone, region}, placed(), []string{inB, far}, "balance same-region region: 10.1.0.3"},
		{"B6: then none", []string{hostname, zone, region}, placed(), []string{far}, "reject no-topology-match"},
		{"B7: the zone", []string{zone, "*"}, placed(), []string{onN2, inB}, "balance same-zone zone: 10.1.0.2"},
		{"B7: else all", []string{zone, "*"}, placed(), []string{inB, far}, "balance all cluster: 10.1.0.3 10.1.0.4"},
		{"B11: a node without labels takes any", []string{hostname, "*"}, unlabelled, []string{onN1, far}, "balance all cluster: 10.1.0.1 10.1.0.4"},
		{"B11: or none", []string{hostname, zone}, unlabelled, []string{onN1, far}, "reject no-topology-match"},
		{"B11: a node not yet seen takes any", []string{zone, "*"}, unknown, []string{onN1, far}, "balance all cluster: 10.1.0.1 10.1.0.4"},
		{"B11: or none, not seen", []string{zone}, unknown, []string{onN1, far}, "reject no-topology-match"},
		{"B12: a key that the node lacks is skipped", []string{"rack", zone}, placed(), []string{"10.1.0.8 ready label=rack:7", onN2}, "balance same-zone zone: 10.1.0.2"},
		{"B13: an endpoint that lacks the key is no match", []string{zone}, placed(), []string{"10.244.0.6 ready node=minikube"}, "reject no-topology-match"},
		{"B13: but it is any", []string{zone, "*"}, placed(), []string{"10.244.0.6 ready node=minikube"}, "balance all cluster: 10.244.0.6"},
		{"B13: some lack it", []string{zone}, placed(), []string{"10.244.0.6 ready node=minikube", onN2}, "balance same-zone zone: 10.1.0.2"},
		{"B15: any label will do", []string{"rack", zone}, racked, []string{"10.1.0.8 ready label=rack:7", onN2}, "balance same-label cluster: 10.1.0.8"},
		{"a label with an empty value is a value", []string{"rack"}, empty, []string{"10.1.0.8 ready label=rack:", "10.1.0.9 ready", onN2}, "balance same-label cluster: 10.1.0.8"},
		{"A11: the slice's zone counts without a Node", []string{zone}, placed(), []string{"10.1.0.8 ready zone=a", inB}, "balance same-zone zone: 10.1.0.8"},
		{"keys win over hints", []string{zone}, placed(), []string{onN2 + " forZone=b", inB + " forZone=a"}, "balance same-zone zone: 10.1.0.2"},
		{"none ready: the keys hold for those that still serve", []string{zone}, placed(), []string{"10.1.0.2 leaving " + at("n2", "a", "r1"), "10.1.0.3 leaving " + at("n3", "b", "r1")},
			"balance terminating zone: 10.1.0.2"},
		{"none ready: nothing leaves the node even then", []string{hostname}, placed(), []string{"10.1.0.3 leaving " + at("n3", "b", "r1")}, "reject no-topology-match"},
		{"one ready far away: those that leave do not count", []string{zone}, placed(), []string{"10.1.0.2 leaving " + at("n2", "a", "r1"), inB}, "reject no-topology-match"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := decided(t, keyed(row.keys...), row.node, strings.Join(row.endpoints, "\n"))
			equal(t, "clients on the node", show(d.Frontends[0].Internal), row.want)
			equal(t, "clients off the node", show(d.Frontends[0].External), row.want)
		})
	}
}

// B14, B16: the experiment with three nodes.
func TestTheExperimentWithThreeNodes(t *testing.T) {
	const pods = "172.20.1.13 ready node=.111 label=kubernetes.io/hostname:.111\n172.20.2.19 ready node=.128 label=kubernetes.io/hostname:.128"
	for name, want := range map[string]string{
		".111": "balance same-node node: 172.20.1.13",
		".128": "balance same-node node: 172.20.2.19",
		".117": "balance all cluster: 172.20.1.13 172.20.2.19",
	} {
		node := lb.Node{Name: name, Labels: lb.NewLabels(map[string]string{hostname: name})}
		equal(t, name, show(decided(t, keyed(hostname, "*"), node, pods).Frontends[0].Internal), want)
	}
}

// B9, B19: policies Local take the local list, whatever keys say; the cluster list of the same Service has the keys.
func TestPolicyLocalWinsOverKeys(t *testing.T) {
	svc := public()
	svc.TopologyKeys, svc.External = []string{zone}, lb.PolicyLocal
	const text = "10.1.0.1 ready node=n1 zone=b\n10.1.0.2 ready node=n2 zone=a"
	d := decided(t, svc, placed(), text)
	balancer, cluster := frontend(t, d, "203.0.113.9:80/TCP"), frontend(t, d, "10.96.0.10:80/TCP")
	equal(t, "outside", show(balancer.External), "balance local node: 10.1.0.1")
	equal(t, "inside", show(balancer.Internal), "balance same-zone zone: 10.1.0.2")
	equal(t, "cluster IP", show(cluster.Internal), "balance same-zone zone: 10.1.0.2")
	svc.Internal = lb.PolicyLocal
	equal(t, "cluster IP, Local too", show(frontend(t, decided(t, svc, placed(), text), "10.96.0.10:80/TCP").Internal), "balance local node: 10.1.0.1")
}

// B15: session affinity follows the list: an endpoint of another rack is in none.
func TestOnlyWhatTheKeysAllowIsInAList(t *testing.T) {
	node := placed()
	node.Labels = lb.NewLabels(map[string]string{"rack": "7"})
	d := decided(t, keyed("rack"), node, "10.1.0.1 ready label=rack:7\n10.1.0.2 ready label=rack:8\n10.1.0.3 leaving label=rack:7\n10.1.0.4 unready label=rack:7")
	equal(t, "lists", sprint(d.Backends[0].Lists)+sprint(d.Backends[1].Lists)+sprint(d.Backends[2].Lists)+sprint(d.Backends[3].Lists), "[cluster][][][]")
	equal(t, "reasons", reasons(d), "+10.1.0.1 same-label, -10.1.0.2 other-label, -10.1.0.3 is-terminating, -10.1.0.4 not-ready")
	equal(t, "key", d.Frontends[0].Internal.Key, "rack")
	none := decided(t, keyed("rack"), node, "10.1.0.2 leaving label=rack:8\n10.1.0.4 unready label=rack:7")
	equal(t, "reasons of none", reasons(none), "-10.1.0.2 no-topology-match, -10.1.0.4 not-ready")
}

// B10: a naive port of the old algorithm says the same of 150,000 random worlds.
func TestTopologyKeysAreThoseOfTheOldAlgorithm(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 20))
	keys := []string{hostname, zone, region, "rack", "row"}
	labels := func() lb.Labels {
		all := map[string]string{}
		for _, key := range keys {
			if random.IntN(3) > 0 {
				all[key] = []string{"a", "b", ""}[random.IntN(3)]
			}
		}
		if random.IntN(10) == 0 {
			clear(all)
		}
		return lb.NewLabels(all)
	}
	met := map[lb.Reason]int{}
	for n := range 150_000 {
		svc := keyed()
		for _, i := range random.Perm(len(keys))[:random.IntN(4)] {
			svc.TopologyKeys = append(svc.TopologyKeys, keys[i])
		}
		if random.IntN(3) == 0 {
			svc.TopologyKeys = append(svc.TopologyKeys, "*")
		}
		node := lb.Node{Name: "n1", Labels: labels()}
		var eps []lb.Endpoint
		for i := range 1 + random.IntN(5) {
			eps = append(eps, lb.Endpoint{Port: lb.PortKey{Name: "http", Protocol: lb.TCP}, Ready: true, Serving: true, Labels: labels(),
				Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 8080)})
		}
		var want []string
		for _, e := range oracleFilter(oracleMap(node.Labels, "", ""), svc.TopologyKeys, eps, func(e lb.Endpoint) map[string]string { return oracleMap(e.Labels, "", "") }) {
			want = append(want, e.Address.String())
		}
		sort.Strings(want)
		side := decide.Decide(lb.Input{Service: svc, Endpoints: eps}, node).Frontends[0].Internal
		var got []string
		for _, tier := range side.Tiers {
			for _, b := range tier.Backends {
				got = append(got, b.Address.String())
			}
		}
		if refused := side.Action == lb.Reject && side.Reason == lb.ReasonNoTopologyMatch; refused != (len(want) == 0) || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Fatalf("world %d: keys %q, node %v, endpoints %v: decided %v %q, the old algorithm says %q", n, svc.TopologyKeys, node.Labels, eps, side, got, want)
		}
		met[side.Reason]++
	}
	for _, reason := range []lb.Reason{lb.ReasonAll, lb.ReasonSameNode, lb.ReasonSameZone, lb.ReasonSameRegion, lb.ReasonSameLabel, lb.ReasonNoTopologyMatch} {
		if met[reason] < 1000 {
			t.Errorf("only %d worlds with reason %s: %v", met[reason], reason, met)
		}
	}
}
