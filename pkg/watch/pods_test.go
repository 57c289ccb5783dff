// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/nearlb/nearlb/pkg/lb"
)

func podSlice(name, family, endpoints string) string {
	return webSlice(name, "addressType: "+family+", ports: [{name: http, port: 8080}], endpoints: ["+endpoints+"]")
}

func TestPodsOfThisNodeAreKnownByWhatSlicesSay(t *testing.T) {
	source := load(t, NodeConfig{Name: "n1"}, webService,
		"{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}",
		podSlice("a", "IPv4", "{addresses: [10.1.0.1], nodeName: n1, targetRef: {kind: Pod, namespace: default, name: web-0}},"+
			"{addresses: [10.1.0.2], nodeName: n1, targetRef: {kind: Pod, name: web-1}, conditions: {ready: false}},"+
			"{addresses: [10.1.0.3], nodeName: n2, targetRef: {kind: Pod, name: web-2}},"+
			"{addresses: [10.1.0.4], nodeName: n1, targetRef: {kind: VM, name: web-3}},"+
			"{addresses: [10.1.0.5], nodeName: n1, targetRef: {kind: Pod, namespace: kube-system, name: web-4}},"+
			"{addresses: [10.1.0.6], nodeName: n1, targetRef: {kind: Pod, name: 'a b'}},"+
			"{addresses: [192.0.2.1], nodeName: n1, targetRef: {kind: Pod, name: on-host}},"+
			"{addresses: [10.1.0.7], nodeName: n1, targetRef: {kind: Pod, name: one}}"),
		podSlice("b", "IPv4", "{addresses: [10.1.0.7], nodeName: n1, targetRef: {kind: Pod, name: other}}"),
		podSlice("c", "IPv6", "{addresses: ['fd00::1'], nodeName: n1, targetRef: {kind: Pod, name: web-0}}"),
	).(PodSource)
	for address, want := range map[string]string{"10.1.0.1": "web-0", "10.1.0.2": "web-1", "fd00::1": "web-0",
		"10.1.0.3": "", "10.1.0.4": "", "10.1.0.5": "", "10.1.0.6": "", "10.1.0.7": "", "192.0.2.1": "", "10.1.0.9": ""} {
		got, known := source.PodAt(netip.MustParseAddr(address))
		if got.Name != want || known != (want != "") {
			t.Errorf("pod at %s: %v, %v; want %q", address, got, known, want)
		}
	}
	same(t, "addresses of web-0", source.PodAddresses(lb.PodName{Namespace: "default", Name: "web-0"}),
		[]netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")})
	same(t, "addresses of nobody", len(source.PodAddresses(lb.PodName{Namespace: "default", Name: "web-2"})), 0)
}

func TestPodsOfOtherNodesTakeNoMemory(t *testing.T) {
	s := slice{}
	for n := range 100 {
		s.pods = append(s.pods, podAt{name: "web", node: fmt.Sprint("n", n)})
	}
	all := weak.Make(&s.pods[0])
	s.podsOn("n7")
	runtime.GC()
	if all.Value() != nil {
		t.Error("the names of other nodes' pods are kept")
	}
	same(t, "pods of the node", slices.Equal(s.pods, []podAt{{name: "web", node: "n7"}}), true)
	s.podsOn("n8")
	same(t, "pods of no node", s.pods == nil, true)
}

func TestPodsAreForgottenWithTheirLastSlice(t *testing.T) {
	s := newStore(NodeConfig{Name: "n1"})
	put := func(name, pod string) {
		t.Helper()
		objects, err := newReader().read("slice.yaml", []byte(podSlice(name, "IPv4", "{addresses: [10.1.0.1], nodeName: n1, targetRef: {kind: Pod, name: "+pod+"}}")), func(text string) { t.Error(text) })
		if err != nil {
			t.Fatal(err)
		}
		s.apply(objects, nil, &changes{})
	}
	at := func() string { name, _ := s.PodAt(netip.MustParseAddr("10.1.0.1")); return name.Name }
	put("a", "web-0")
	put("b", "web-0")
	s.apply(nil, []objectKey{{kindSlice, "default", "a"}}, &changes{})
	same(t, "pod that a slice still names", at(), "web-0")
	put("b", "web-1")
	same(t, "pod that has the address now", at(), "web-1")
	s.apply(nil, []objectKey{{kindSlice, "default", "b"}}, &changes{})
	same(t, "pods that are known", len(s.pods), 0)
}
