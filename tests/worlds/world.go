// SPDX-License-Identifier: Apache-2.0

// Package worlds draws random clusters as Kubernetes API objects, for tests that compare what nearlb does with what others do.
package worlds

import (
	"bytes"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
)

// Self is the node that decides.
const Self = "n1"

// World is all that a cluster's API says, as its users wrote it: defaults are not filled in.
type World struct {
	Services          []*corev1.Service
	Slices            []*discoveryv1.EndpointSlice
	Nodes             []*corev1.Node // the own one may be missing
	NodePortAddresses []string       // --nodeport-addresses
}

// Any draws small worlds in which everything meets everything: few names, few addresses. With copies, one address
// may be in several slices, and in one slice several times.
func Any(t *rapid.T, copies bool) World {
	w := World{NodePortAddresses: pick(t, "nodeport addresses", nil, nil, nil, []string{"primary"}, []string{"192.0.2.0/24"},
		[]string{"192.0.3.0/24", "::/0"}, []string{"192.0.0.0/8", "10.0.0.0/8"}, []string{"0.0.0.0/0", "2001:db8:2::2/128"})}
	for _, name := range []string{Self, "n2", "n3"} {
		if often(t, "node is known") {
			w.Nodes = append(w.Nodes, anyNode(t, name))
		}
	}
	for i := range 1 + number(t, "services", 3) {
		w.Services = append(w.Services, anyService(t, i))
	}
	d := endpointDraw{style: pick(t, "style", "mixed", "mixed", "ready", "hinted", "leaving"), copies: copies}
	for i := range 1 + number(t, "slices", 8) {
		w.Slices = append(w.Slices, d.anySlice(t, i, pick(t, "owner", w.Services...)))
	}
	return w
}

func anyNode(t *rapid.T, name string) *corev1.Node {
	n := Node(name)
	if zone := pick(t, "zone", "none", "", "a", "a", "a", "b"); zone != "none" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	number := name[1:]
	n.Status.Addresses = subset(t, "node address", []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeExternalIP, Address: "192.0.3." + number},
		{Type: corev1.NodeInternalIP, Address: "192.0.2." + number},
		{Type: corev1.NodeInternalIP, Address: "2001:db8:2::" + number},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10" + number},
	})
	return n
}

// Node is one that says nothing of itself.
func Node(name string) *corev1.Node {
	return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// Text is the world as a file of JSON documents.
func (w World) Text() []byte {
	var all []runtime.Object
	for _, n := range w.Nodes {
		all = append(all, n)
	}
	for _, s := range w.Services {
		all = append(all, s)
	}
	for _, s := range w.Slices {
		all = append(all, s)
	}
	var out bytes.Buffer
	for _, object := range all {
		if err := json.NewEncoder(&out).Encode(object); err != nil {
			panic(err)
		}
	}
	return out.Bytes()
}

// String is what a person needs to try the world: the options of nearlb plan, and the file.
func (w World) String() string {
	return fmt.Sprintf("# node %s, --nodeport-addresses %q\n%s", Self, w.NodePortAddresses, w.Text())
}

func pick[T any](t *rapid.T, what string, values ...T) T {
	return values[rapid.IntRange(0, len(values)-1).Draw(t, what)]
}

// number draws 0 to n-1.
func number(t *rapid.T, what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }

func often(t *rapid.T, what string) bool { return number(t, what, 8) != 7 }

func seldom(t *rapid.T, what string) bool { return number(t, what, 16) == 15 }

// subset draws some of the values, in their order.
func subset[T any](t *rapid.T, what string, values []T) []T {
	bits := rapid.IntRange(0, 1<<len(values)-1).Draw(t, what)
	var out []T
	for i, v := range values {
		if bits>>i&1 == 1 {
			out = append(out, v)
		}
	}
	return out
}
