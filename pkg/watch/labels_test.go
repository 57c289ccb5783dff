// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearlb/nearlb/pkg/lb"
)

func labelsOf(source Source, service string) string {
	in, _ := source.Input(lb.ServiceName{Namespace: "default", Name: service})
	var out []string
	for _, e := range in.Endpoints {
		out = append(out, fmt.Sprintf("%v%v", e.Address.Addr(), e.Labels))
	}
	return strings.Join(out, " ")
}

// B13, B16: an endpoint has the labels of its Node, those that the keys name alone.
func TestEndpointsHaveTheLabelsThatTheirServiceAsksFor(t *testing.T) {
	slice := webSlice("web-a", `addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [
		{addresses: [10.1.0.1], nodeName: n1}, {addresses: [10.1.0.2], nodeName: n2}, {addresses: [192.0.2.3]}, {addresses: [10.1.0.4], nodeName: n4}, {addresses: [10.1.0.5]}]`)
	nodes := []string{
		nodeObject("n1", "rack: r1, kubernetes.io/hostname: h1, topology.kubernetes.io/zone: a"),
		nodeObject("n2", "kubernetes.io/hostname: h2"), nodeObject("n3", "rack: ''", "InternalIP 192.0.2.3"),
	}
	keyed := annotated("nearlb.io/topology-keys: 'rack,topology.kubernetes.io/zone,*'", "")
	source := load(t, NodeConfig{Name: "n1", Zone: "z"}, append(nodes, keyed, slice)...)
	same(t, "labels", labelsOf(source, "web"),
		"10.1.0.1[{rack r1} {topology.kubernetes.io/zone z}] 10.1.0.2[] 192.0.2.3[{rack }] 10.1.0.4[] 10.1.0.5[]")
	same(t, "own", source.Node().Labels, lb.NewLabels(map[string]string{"rack": "r1", "kubernetes.io/hostname": "h1", "topology.kubernetes.io/zone": "z"}))
	same(t, "nothing asked for", labelsOf(load(t, NodeConfig{Name: "n1"}, append(nodes, annotated("", ""), slice)...), "web"),
		"10.1.0.1[] 10.1.0.2[] 192.0.2.3[] 10.1.0.4[] 10.1.0.5[]")
}

// B16: an option, on unless it is switched off.
func TestNodesAreNotInferredWhenThatIsOff(t *testing.T) {
	objects := []string{annotated("nearlb.io/topology-keys: kubernetes.io/hostname", ""), nodeObject("n1", "kubernetes.io/hostname: n1", "InternalIP 192.0.2.1"),
		webSlice("web-a", "addressType: IPv4, ports: [{port: 6443}], endpoints: [{addresses: [192.0.2.1]}]")}
	same(t, "inferred", labelsOf(load(t, NodeConfig{Name: "n1"}, objects...), "web"), "192.0.2.1[{kubernetes.io/hostname n1}]")
	same(t, "not inferred", labelsOf(load(t, NodeConfig{Name: "n1", KeepNodeless: true}, objects...), "web"), "192.0.2.1[]")
}

func relabelled(n *corev1.Node, pairs ...string) *corev1.Node {
	n = n.DeepCopy()
	for i := 0; i < len(pairs); i += 2 {
		if n.Labels[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(n.Labels, pairs[i])
		}
	}
	return n
}

func keyedService(name, keys string) *corev1.Service {
	return apiService(name, func(s *corev1.Service) { s.Annotations = map[string]string{annotationKeys: keys} })
}

// B15: labels change at run time. Told are the Services whose keys name the label and that have an endpoint there; of the
// own Node, all whose keys name it.
func TestRelabellingTellsOfExactlyTheServicesConcerned(t *testing.T) {
	onN3 := apiSlice("away-a", "away", "10.1.1.1")
	onN3.Endpoints[0].NodeName = new("n3")
	n1, n2 := apiNode("n1", "a"), apiNode("n2", "a")
	withAPI(t, nil, func(a *api) {
		a.setNode(relabelled(n2, "rack", "r7"))
		a.told("racked")
		same(t, "labels", labelsOf(a.source, "racked"), "10.1.0.1[{rack r7}]")
		a.setNode(relabelled(n2, "rack", "r7", "row", "1"))
		a.told("rowed")
		a.setNode(relabelled(n2, "rack", "r7", "row", "1", "note", "x"))
		a.told("")
		a.setNode(relabelled(n2, "row", "2"))
		a.told("racked rowed")
		same(t, "labels", labelsOf(a.source, "racked"), "10.1.0.1[]")
		a.setNode(relabelled(n1, "rack", "r1"))
		a.told("away racked")
		a.setNode(relabelled(n1, "note", "x"))
		a.told("away racked")
		a.setNode(relabelled(n1, "note", "y"))
		a.told("")
		same(t, "node told", a.nodeChanges(), 0)
		value, _ := a.source.Node().Labels.Get("note")
		same(t, "own label", value, "y")
		must(t, a.client.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}))
		a.setNode(relabelled(n1, "note", "z"))
		a.told("plain racked rowed") // plain had its zone from the Node
		same(t, "labels", labelsOf(a.source, "rowed"), "10.1.0.1[]")
	}, keyedService("racked", "rack,*"), keyedService("rowed", "row"), keyedService("away", "rack"), apiService("plain"), onN3,
		apiSlice("racked-a", "racked", "10.1.0.1"), apiSlice("rowed-a", "rowed", "10.1.0.1"), apiSlice("plain-a", "plain", "10.1.0.1"),
		n1, relabelled(n2, "rack", "r2"), apiNode("n3", "a"))
}
