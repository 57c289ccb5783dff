// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/nearlb/nearlb/pkg/lb"
)

// world draws objects with few names, so that they meet.
type world struct{ *rapid.T }

func (w world) pick(what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(w.T, what)
}

func (w world) object() runtime.Object {
	switch w.pick("kind", "Service", "slice", "slice", "slice", "Node") {
	case "Service":
		return apiService(w.pick("name", "web", "api", "dns"), func(s *corev1.Service) {
			s.Spec.ClusterIP = w.pick("ip", "10.96.0.1", "10.96.0.2", "None")
			if rapid.Bool().Draw(w.T, "selectorless") {
				s.Spec.Selector = nil
			}
			if rapid.Bool().Draw(w.T, "other proxy") {
				s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
			}
			s.Annotations = map[string]string{annotationKeys: w.pick("keys", "", "rack", "example.org/row, rack", "topology.kubernetes.io/zone,*", "*,rack")}
		})
	case "slice":
		return w.slice()
	}
	node := apiNode(w.pick("name", "n1", "n2", "n3"), w.pick("zone", "", "a", "b"))
	for _, key := range []string{"rack", "example.org/row", "note"} {
		if value := w.pick(key, "", "", "1", "2"); value != "" {
			node.Labels[key] = value
		}
	}
	for range rapid.IntRange(0, 2).Draw(w.T, "addresses") {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: w.pick("address", "10.1.0.1", "10.1.0.2", "bad")})
	}
	return node
}

func (w world) slice() runtime.Object {
	out := apiSlice(w.pick("name", "s1", "s2", "s3", "s4"), w.pick("owner", "web", "api", "dns", ""))
	for range rapid.IntRange(0, 3).Draw(w.T, "endpoints") {
		e := discoveryv1.Endpoint{Addresses: []string{w.pick("address", "10.1.0.1", "10.1.0.2", "10.1.0.3", "bad")}}
		if name := w.pick("node", "", "n1", "n2", "n3"); name != "" {
			e.NodeName = &name
		}
		if zone := w.pick("zone", "", "", "a"); zone != "" {
			e.Zone = &zone
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	if rapid.Bool().Draw(w.T, "headless") {
		out.Labels[labelHeadless] = ""
	}
	if out.Labels[labelServiceName] == "" {
		delete(out.Labels, labelServiceName)
	}
	return out
}

// view is all that a store says, without triggers.
type view struct {
	Inputs   map[string]lb.Input
	Node     lb.Node
	Problems []lb.Problem
}

func viewOf(s *store) view {
	v := view{Inputs: map[string]lb.Input{}, Node: s.Node(), Problems: s.Problems()}
	for _, name := range s.Services() {
		in, _ := s.Input(name)
		v.Inputs[name.String()] = in
	}
	return v
}

func (v view) diff(o view) string { return cmp.Diff(v, o, exactly) }

// A13, A16, A17, A18: any history ends as if only the last objects had come, in any order; and each event tells of
// every Service whose input differs, a slice's of no third one.
func TestAnyOrderOfEventsEndsTheSame(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := world{rt}
		s := newStore(NodeConfig{Name: "n1"})
		last := map[objectKey]object{}
		for range rapid.IntRange(1, 30).Draw(rt, "events") {
			o, refusal := convert(w.object())
			if refusal != nil {
				rt.Fatalf("refused: %v", refusal)
			}
			before := viewOf(s)
			var c changes
			if own := o.key == (objectKey{kindNode, "", "n1"}); !own && rapid.IntRange(0, 3).Draw(rt, "delete") == 0 {
				delete(last, o.key)
				s.apply(nil, []objectKey{o.key}, &c)
			} else {
				last[o.key] = o
				s.apply([]object{o}, nil, &c)
			}
			tellsAll(rt, before, viewOf(s), c, o.key)
		}
		fresh := newStore(NodeConfig{Name: "n1"})
		keys := slices.SortedFunc(maps.Keys(last), objectKey.compare)
		for _, i := range rapid.Permutation(indexes(len(keys))).Draw(rt, "order") {
			fresh.apply([]object{last[keys[i]]}, nil, &changes{})
		}
		if diff := viewOf(fresh).diff(viewOf(s)); diff != "" {
			rt.Fatalf("the order matters (-fresh +history):\n%s", diff)
		}
	})
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func tellsAll(t *rapid.T, before, after view, c changes, key objectKey) {
	t.Helper()
	names := maps.Clone(before.Inputs)
	maps.Copy(names, after.Inputs)
	for name := range names {
		var service lb.ServiceName
		if err := service.UnmarshalText([]byte(name)); err != nil {
			t.Fatal(err)
		}
		changed := cmp.Diff(before.Inputs[name], after.Inputs[name], exactly) != ""
		if changed && !c.services[service] {
			t.Fatalf("%s changed %s and tells nothing", key, name)
		}
	}
	tellsOwnLabels(t, before.Node, after, c, key)
	before.Node.Labels, after.Node.Labels = nil, nil
	if changed := cmp.Diff(before.Node, after.Node, exactly) != ""; changed && !c.node {
		t.Fatalf("%s changed the node and tells nothing", key)
	}
	if key.kind == kindSlice && len(c.services) > 2 {
		t.Fatalf("%s tells of %d Services (A16)", key, len(c.services))
	}
}

// B15: labels of the own Node concern the Services whose keys name them, and no other.
func tellsOwnLabels(t *rapid.T, before lb.Node, after view, c changes, key objectKey) {
	t.Helper()
	for name, in := range after.Inputs {
		for _, label := range in.Service.TopologyKeys {
			old, _ := before.Labels.Get(label)
			now, _ := after.Node.Labels.Get(label)
			if old != now && !c.services[in.Service.Name] {
				t.Fatalf("%s changed the own label %s and tells nothing of %s", key, label, name)
			}
		}
	}
}

// Whatever files say and whoever comes first, no object is in force twice, and a good file without rivals is in force.
func TestFilesNeverDefineAnObjectTwice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := map[string]*manifest{}
		for step := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			for range rapid.IntRange(1, 3).Draw(rt, "edits") {
				name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "file")
				edit(rt, files, name)
			}
			refused := resolve(files, func(name string) string { return name })
			owner := map[objectKey]string{}
			for _, name := range slices.Sorted(maps.Keys(files)) {
				m := files[name]
				if m.wanted() && refused[name] == nil {
					m.good, m.fresh = m.next, false
				}
				for _, o := range m.good {
					if owner[o.key] != "" {
						rt.Fatalf("step %d: %s is in force from %s and %s", step, o.key, owner[o.key], name)
					}
					owner[o.key] = name
				}
			}
			for name := range refused {
				rivals := 0
				for _, o := range files[name].next {
					if other := owner[o.key]; other != "" && other != name {
						rivals++
					}
				}
				if rivals == 0 {
					rt.Fatalf("step %d: %s is refused without a rival: %v", step, name, refused[name])
				}
			}
		}
	})
}

// edit removes a file or gives it new content.
func edit(t *rapid.T, files map[string]*manifest, name string) {
	if rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
		delete(files, name)
		return
	}
	if files[name] == nil {
		files[name] = &manifest{}
	}
	objects := []object{}
	for i := range 4 {
		if rapid.Bool().Draw(t, fmt.Sprintf("object %d", i)) {
			objects = append(objects, object{key: objectKey{kindNode, "", fmt.Sprint(i)}})
		}
	}
	files[name].next, files[name].fresh = objects, true
}
