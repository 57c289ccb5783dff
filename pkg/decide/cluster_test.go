// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The usable cluster list: every row of the fallback table of service-semantics.md, and its corner cases (A7 to A10, C20,
// C21).
func TestClusterListFollowsConditionsAndHints(t *testing.T) {
	noZone := n1()
	noZone.Zone = ""
	for _, row := range []struct {
		name string
		node *lb.Node
		text string
		want string
	}{
		{"C21: without hints every ready endpoint", nil, `
			10.1.0.1 ready node=n1 zone=a
			10.1.0.2 ready node=n2 zone=b`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"all hinted for zones, some for ours", nil, `
			10.1.0.1 ready node=n2 zone=a forZone=a
			10.1.0.2 ready node=n3 zone=b forZone=b
			10.1.0.3 ready node=n3 zone=b forZone=a,b`, "balance same-zone zone: 10.1.0.1 10.1.0.3"},
		{"all hinted for zones, none for ours", nil, `
			10.1.0.1 ready node=n2 zone=c forZone=c
			10.1.0.2 ready node=n3 zone=b forZone=b`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"one ready endpoint without hint", nil, `
			10.1.0.1 ready node=n2 zone=a forZone=a
			10.1.0.2 ready node=n3 zone=b`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"node without zone label", &noZone, `
			10.1.0.1 ready zone=a forZone=a
			10.1.0.2 ready zone=b forZone=b`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"node without zone label, hint for an empty zone", &noZone, `
			10.1.0.1 ready zone=a forZone=
			10.1.0.2 ready zone=b forZone=b`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"node without zone label, hints for nodes", &noZone, `
			10.1.0.1 ready node=n1 forZone=a forNode=n1
			10.1.0.2 ready node=n2 forZone=b forNode=n2`, "balance same-node node: 10.1.0.1"},
		{"all hinted for nodes, some for ours", nil, `
			10.1.0.1 ready node=n1 zone=a forNode=n1 forZone=a
			10.1.0.2 ready node=n2 zone=a forNode=n2 forZone=a`, "balance same-node node: 10.1.0.1"},
		{"a hint for our node counts wherever the endpoint is", nil, `
			10.1.0.1 ready node=n9 zone=z forNode=n1,n9
			10.1.0.2 ready node=n1 zone=a forNode=n2`, "balance same-node node: 10.1.0.1"},
		{"all hinted for nodes, none for ours, zones hinted", nil, `
			10.1.0.1 ready node=n2 zone=a forNode=n2 forZone=a
			10.1.0.2 ready node=n3 zone=b forNode=n3 forZone=b`, "balance same-zone zone: 10.1.0.1"},
		{"all hinted for nodes, none for ours, a zone hint is missing", nil, `
			10.1.0.1 ready node=n2 zone=a forNode=n2 forZone=a
			10.1.0.2 ready node=n3 zone=b forNode=n3`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"hinted for our node, but unready: falls to the zone", nil, `
			10.1.0.1 unready node=n1 zone=a forNode=n1 forZone=a
			10.1.0.2 ready node=n2 zone=a forNode=n2 forZone=a
			10.1.0.3 ready node=n3 zone=b forNode=n3 forZone=b`, "balance same-zone zone: 10.1.0.2"},
		{"hints on all but one ready endpoint", nil, `
			10.1.0.1 ready node=n1 zone=a forNode=n1 forZone=a
			10.1.0.2 ready node=n2 zone=a forNode=n2 forZone=a
			10.1.0.3 ready node=n3 zone=b`, "balance all cluster: 10.1.0.1 10.1.0.2 10.1.0.3"},
		{"endpoints that are not ready need no hints", nil, `
			10.1.0.1 ready node=n2 zone=a forZone=a
			10.1.0.2 unready node=n2 zone=a
			10.1.0.3 leaving node=n2 zone=a
			10.1.0.4 ready node=n3 zone=b forZone=b`, "balance same-zone zone: 10.1.0.1"},
		{"A9: nothing to terminating ones while any is ready", nil, `
			10.1.0.1 leaving node=n1 zone=a
			10.1.0.2 ready node=n3 zone=b`, "balance all cluster: 10.1.0.2"},
		{"A8: none ready, all that serve while terminating, hints ignored", nil, `
			10.1.0.1 leaving node=n1 zone=a forZone=a forNode=n1
			10.1.0.2 leaving node=n3 zone=b
			10.1.0.3 dead node=n3 zone=b
			10.1.0.4 unready node=n3 zone=b`, "balance terminating cluster: 10.1.0.1 10.1.0.2"},
		{"A7: ready and terminating at once is ready", nil, `
			10.1.0.1 published node=n1
			10.1.0.2 leaving node=n1`, "balance all cluster: 10.1.0.1"},
		{"none ready, none serving", nil, `
			10.1.0.1 dead node=n1
			10.1.0.2 unready node=n1`, "reject no-endpoints"},
		{"C8: no endpoint at all", nil, "", "reject no-endpoints"},
		{"B13: an endpoint without a zone is used like any other", nil, `
			10.244.0.6 ready node=minikube
			10.244.0.7 ready node=minikube`, "balance all cluster: 10.244.0.6 10.244.0.7"},
		{"B11: a node that is not known yet gets every ready endpoint", &lb.Node{}, `
			10.1.0.1 ready node=n1 zone=a forNode=n1 forZone=a
			10.1.0.2 ready forNode=n2 forZone=b`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"a node without a name matches no hint", &lb.Node{}, `
			10.1.0.1 ready forNode=
			10.1.0.2 ready forNode=n2`, "balance all cluster: 10.1.0.1 10.1.0.2"},
		{"C22: backends with the node's own address", nil, `
			192.0.2.1 ready node=n1
			192.0.2.2 ready node=n2`, "balance all cluster: 192.0.2.1 192.0.2.2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			node := n1()
			if row.node != nil {
				node = *row.node
			}
			f := frontend(t, decided(t, web(), node, row.text), "10.96.0.10:80/TCP")
			equal(t, "clients on the node", show(f.Internal), row.want)
			equal(t, "clients off the node", show(f.External), row.want)
		})
	}
}

// C5, C6: the same endpoint leaves the list when it is not ready and comes back as the same backend.
func TestReadinessTakesABackendOutAndPutsItBack(t *testing.T) {
	up := "10.244.0.6 ready node=minikube\n10.244.0.8 ready node=minikube"
	before := decided(t, web(), n1(), up)
	down := decided(t, web(), n1(), "10.244.0.6 ready node=minikube\n10.244.0.8 unready node=minikube")
	equal(t, "while down", show(down.Frontends[0].Internal), "balance all cluster: 10.244.0.6")
	if got := down.Backends[1]; got.State != lb.Quiet || len(got.Lists) != 0 || got.Key != before.Backends[1].Key {
		t.Errorf("while down the backend is %+v, want it quiet, in no list, under its key", got)
	}
	equal(t, "change", lb.Diff(before, down).String(), ""+
		"~ frontend 10.96.0.10:80/TCP ClusterIP default/web:http/TCP; internal balance all (cluster 2) -> balance all (cluster 1), 0 in, 1 out; external balance all (cluster 2) -> balance all (cluster 1), 0 in, 1 out\n"+
		"~ backend 10.244.0.8:8080 http/TCP; state active -> quiet; lists cluster -> none")
	if after := decided(t, web(), n1(), up); !after.Equal(before) {
		t.Errorf("after recovery: %v", lb.Diff(before, after))
	}
}
