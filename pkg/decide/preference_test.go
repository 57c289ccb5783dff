// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The annotation traffic-distribution: by place, among ready endpoints, whatever hints say.
func TestDistributionPrefersByPlace(t *testing.T) {
	noZone := n1()
	noZone.Zone = ""
	const onNode, inZone, far = "\n10.1.0.1 ready node=n1 zone=a forZone=b", "\n10.1.0.2 ready node=n2 zone=a forZone=b", "\n10.1.0.3 ready node=n3 zone=b forZone=a"
	for _, row := range []struct {
		name string
		by   lb.Distribution
		node lb.Node
		text string
		want string
		note lb.Note
	}{
		{"node: its own", lb.PreferSameNode, n1(), onNode + inZone + far, "balance same-node node: 10.1.0.1", ""},
		{"node: then the zone's", lb.PreferSameNode, n1(), inZone + far, "balance same-zone zone: 10.1.0.2", ""},
		{"node: then all", lb.PreferSameNode, n1(), far, "balance all cluster: 10.1.0.3", lb.NoteNoEndpointInZone},
		{"node: its own without a zone", lb.PreferSameNode, noZone, onNode + far, "balance same-node node: 10.1.0.1", ""},
		{"node: no zone, all", lb.PreferSameNode, noZone, inZone + far + "\n10.1.0.4 ready", "balance all cluster: 10.1.0.2 10.1.0.3 10.1.0.4", lb.NoteNodeWithoutZone},
		{"zone: not the node's alone", lb.PreferSameZone, n1(), onNode + inZone + far, "balance same-zone zone: 10.1.0.1 10.1.0.2", ""},
		{"zone: then all", lb.PreferSameZone, n1(), far, "balance all cluster: 10.1.0.3", lb.NoteNoEndpointInZone},
		{"zone: no zone, all", lb.PreferSameZone, noZone, onNode + far, "balance all cluster: 10.1.0.1 10.1.0.3", lb.NoteNodeWithoutZone},
		{"one that leaves is not preferred", lb.PreferSameZone, n1(), "10.1.0.9 leaving zone=a" + far, "balance all cluster: 10.1.0.3", lb.NoteNoEndpointInZone},
		{"none ready: all that serve", lb.PreferSameZone, n1(), "10.1.0.8 leaving zone=b\n10.1.0.9 leaving zone=a", "balance terminating cluster: 10.1.0.8 10.1.0.9", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := web()
			svc.Distribution = row.by
			side := decided(t, svc, row.node, row.text).Frontends[0].Internal
			equal(t, "side", show(side), row.want)
			equal(t, "note", string(side.Note), string(row.note))
		})
	}
}

// A preference never turns itself off silently: where hints do not decide, the side says why.
func TestHintsThatDoNotDecideAreNoted(t *testing.T) {
	noZone := n1()
	noZone.Zone = ""
	for _, row := range []struct {
		name string
		node lb.Node
		text string
		want string
		note lb.Note
	}{
		{"no hints, none asked for in this row's Service but by the controller", n1(), "10.1.0.1 ready", "balance all cluster: 10.1.0.1", lb.NoteNoHints},
		{"in force", n1(), "10.1.0.1 ready forZone=a\n10.1.0.2 ready forZone=b", "balance same-zone zone: 10.1.0.1", ""},
		{"one without", n1(), "10.1.0.1 ready forZone=a\n10.1.0.2 ready", "balance all cluster: 10.1.0.1 10.1.0.2", lb.NoteEndpointWithoutHint},
		{"node without zone", noZone, "10.1.0.1 ready forZone=a", "balance all cluster: 10.1.0.1", lb.NoteNodeWithoutZone},
		{"none for the zone", n1(), "10.1.0.1 ready forZone=b", "balance all cluster: 10.1.0.1", lb.NoteNoEndpointInZone},
		{"nodes alone, none for ours", n1(), "10.1.0.1 ready forNode=n2", "balance all cluster: 10.1.0.1", lb.NoteNoEndpointOnNode},
		{"nodes alone, one without", n1(), "10.1.0.1 ready forNode=n1\n10.1.0.2 ready", "balance all cluster: 10.1.0.1 10.1.0.2", lb.NoteEndpointWithoutHint},
		{"a zone in force, a node not", n1(), "10.1.0.1 ready forNode=n1 forZone=a\n10.1.0.2 ready forZone=a", "balance same-zone zone: 10.1.0.1 10.1.0.2", lb.NoteEndpointWithoutHint},
		{"no node's turn, the zone's", n1(), "10.1.0.1 ready forNode=n2 forZone=a", "balance same-zone zone: 10.1.0.1", ""},
		{"none ready", n1(), "10.1.0.1 leaving", "balance terminating cluster: 10.1.0.1", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := web()
			svc.WantsHints = true
			side := decided(t, svc, row.node, row.text).Frontends[0].Internal
			equal(t, "side", show(side), row.want)
			equal(t, "note", string(side.Note), string(row.note))
		})
	}
	equal(t, "note of a Service that wants nothing", string(decided(t, web(), n1(), "10.1.0.1 ready").Frontends[0].Internal.Note), "")
}

// The annotation local-fallback: the cluster's list where there would be a drop.
func TestLocalFallbackTakesTheClustersList(t *testing.T) {
	svc := public()
	svc.Internal, svc.External, svc.LocalFallback = lb.PolicyLocal, lb.PolicyLocal, true
	for _, row := range []struct {
		name, text, want, why string
	}{
		{"somebody local", "10.1.0.1 ready node=n1\n10.1.0.2 ready node=n2", "balance local node: 10.1.0.1", "+10.1.0.1 local, +10.1.0.2 all"},
		{"somebody local that leaves", "10.1.0.1 leaving node=n1\n10.1.0.2 ready node=n2", "balance local-terminating node: 10.1.0.1", "+10.1.0.1 local-terminating, +10.1.0.2 all"},
		{"nobody local", "10.1.0.1 unready node=n1\n10.1.0.2 ready node=n2", "balance local-fallback cluster: 10.1.0.2", "-10.1.0.1 not-ready, +10.1.0.2 local-fallback"},
		{"nobody local, hints", "10.1.0.2 ready node=n2 forZone=a\n10.1.0.3 ready node=n3 forZone=b", "balance local-fallback zone: 10.1.0.2", "+10.1.0.2 local-fallback, -10.1.0.3 other-zone"},
		{"nobody ready anywhere", "10.1.0.2 leaving node=n2", "balance local-fallback cluster: 10.1.0.2", "+10.1.0.2 local-fallback"},
		{"nobody at all", "10.1.0.2 unready node=n2", "reject no-endpoints", "-10.1.0.2 not-ready"},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := decided(t, svc, n1(), row.text)
			equal(t, "cluster IP", show(frontend(t, d, "10.96.0.10:80/TCP").Internal), row.want)
			equal(t, "from outside", show(frontend(t, d, "203.0.113.9:80/TCP").External), row.want)
			equal(t, "reasons", reasons(d), row.why)
		})
	}
	inside := web()
	inside.Internal, inside.LocalFallback, inside.TopologyKeys = lb.PolicyLocal, true, []string{"rack"}
	equal(t, "keys hold in the fallback", show(decided(t, inside, n1(), "10.1.0.2 ready node=n2").Frontends[0].Internal), "reject no-topology-match")
	inside.TopologyKeys = nil
	d := decided(t, inside, n1(), "10.1.0.2 ready node=n2")
	equal(t, "list of the affinity", string(d.Frontends[0].Internal.List)+sprint(d.Backends[0].Lists), "cluster[cluster]")
	inside.LocalFallback = false
	equal(t, "without the annotation", show(decided(t, inside, n1(), "10.1.0.2 ready node=n2").Frontends[0].Internal), "drop no-local-endpoints")
}
