// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nearlb/nearlb/pkg/lb"
)

const webService = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.10, selector: {a: b}, ports: [{name: http, port: 80}]}}"

// webSlice is a slice of that Service in one line; rest is what follows its metadata.
func webSlice(name, rest string) string {
	return "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: " + name +
		", labels: {kubernetes.io/service-name: web}}, " + rest + "}"
}

// backends are the endpoints of web as short text: address, ready-serving-terminating as letters, place, hints.
func backends(t *testing.T, source Source) (out []string) {
	t.Helper()
	for _, e := range input(t, source, "default", "web").Endpoints {
		out = append(out, brief(e))
	}
	return out
}

func brief(e lb.Endpoint) string {
	text := e.Address.String() + " "
	for _, condition := range []struct {
		set    bool
		letter string
	}{{e.Ready, "r"}, {e.Serving, "s"}, {e.Terminating, "t"}} {
		if condition.set {
			text += condition.letter
		}
	}
	for _, part := range []string{e.Node, e.Zone, e.Region, strings.Join(e.NodeHints, "+"), strings.Join(e.ZoneHints, "+")} {
		text += "/" + part
	}
	return text
}

func TestEndpointsAreReadAsKubeProxyReadsThem(t *testing.T) {
	rows := []struct {
		name, rest string
		want       []string
	}{
		{"A7, A8, A9, A10, C7: nil conditions", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2], conditions: {ready: true}}]",
			[]string{"10.1.0.1:8080 rs/////", "10.1.0.2:8080 rs/////"}},
		{"A8: serving is not taken from ready", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], conditions: {ready: false}}]",
			[]string{"10.1.0.1:8080 s/////"}},
		{"A7: ready and terminating at once", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], conditions: {ready: true, serving: false, terminating: true}}]",
			[]string{"10.1.0.1:8080 rt/////"}},
		{"C5", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], conditions: {ready: false, serving: false, terminating: false}}]",
			[]string{"10.1.0.1:8080 /////"}},
		{"only the first address", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1, 10.1.0.2]}]",
			[]string{"10.1.0.1:8080 rs/////"}},
		{"legacy spelling", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [010.01.000.001]}]",
			[]string{"10.1.0.1:8080 rs/////"}},
		{"C18: IPv6", "addressType: IPv6, ports: [{name: http, port: 8080}], endpoints: [{addresses: ['fd00:0::1']}]",
			[]string{"[fd00::1]:8080 rs/////"}},
		{"A1: every port of the slice", "addressType: IPv4, ports: [{name: http, port: 8080}, {name: dns, port: 53, protocol: UDP}], endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}]",
			[]string{"10.1.0.1:8080 rs/////", "10.1.0.1:53 rs/////", "10.1.0.2:8080 rs/////", "10.1.0.2:53 rs/////"}},
		{"node, zone, hints", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], nodeName: n1, zone: a, hints: {forZones: [{name: b}, {name: a}], forNodes: [{name: n1}]}}]",
			[]string{"10.1.0.1:8080 rs/n1/a//n1/a+b"}},
		{"empty hints are no hint", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], hints: {}}]",
			[]string{"10.1.0.1:8080 rs/////"}},
		{"A11: deprecatedTopology", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], deprecatedTopology: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: a, topology.kubernetes.io/region: r}}]",
			[]string{"10.1.0.1:8080 rs/n1/a/r//"}},
	}
	for _, row := range rows {
		same(t, row.name, backends(t, load(t, NodeConfig{}, webService, webSlice("web-a", row.rest))), row.want)
	}
}

// A6: one bad endpoint does not cost the slice, and says which field is bad.
func TestABadEndpointCostsItselfOnly(t *testing.T) {
	nine := func(format string) string {
		var out []string
		for i := range 9 {
			out = append(out, fmt.Sprintf(format, i))
		}
		return "[" + strings.Join(out, ", ") + "]"
	}
	rows := []struct{ endpoint, field, message string }{
		{"{addresses: [10.1.0]}", "endpoints[1].addresses[0]", `"10.1.0": must be a valid IP address`},
		{"{addresses: [web.example.org]}", "endpoints[1].addresses[0]", `"web.example.org"`},
		{"{addresses: ['fd00::1']}", "endpoints[1].addresses[0]", `"fd00::1": must be a valid IPv4 address`},
		{"{addresses: [127.0.0.1]}", "endpoints[1].addresses[0]", "loopback"},
		{"{addresses: [169.254.1.1]}", "endpoints[1].addresses[0]", "link-local"},
		{"{addresses: [224.0.0.1]}", "endpoints[1].addresses[0]", "multicast"},
		{"{addresses: [0.0.0.0]}", "endpoints[1].addresses[0]", "unspecified"},
		{"{addresses: [255.255.255.255]}", "endpoints[1].addresses[0]", "broadcast"},
		{"{addresses: [10.1.0.2, x]}", "endpoints[1].addresses[1]", `"x"`},
		{"{addresses: []}", "endpoints[1].addresses", "at least 1"},
		{"{}", "endpoints[1].addresses", "at least 1"},
		{"{addresses: [10.1.0.2], nodeName: N_1}", "endpoints[1].nodeName", `"N_1"`},
		{"{addresses: [10.1.0.2], nodeName: ''}", "endpoints[1].nodeName", ""},
		{"{addresses: [10.1.0.2], hostname: a.b}", "endpoints[1].hostname", `"a.b"`},
		{"{addresses: [10.1.0.2], hints: {forZones: " + nine("{name: z%d}") + "}}", "endpoints[1].hints.forZones", "8"},
		{"{addresses: [10.1.0.2], hints: {forNodes: " + nine("{name: n%d}") + "}}", "endpoints[1].hints.forNodes", "8"},
		{"{addresses: [10.1.0.2], hints: {forZones: [{name: a}, {name: a}]}}", "endpoints[1].hints.forZones", "duplicate"},
		{"{addresses: [10.1.0.2], hints: {forZones: [{name: 'a b'}]}}", "endpoints[1].hints.forZones", `"a b"`},
		{"{addresses: [10.1.0.2], deprecatedTopology: {'a b': c}}", "endpoints[1].topology", `"a b"`},
	}
	for _, row := range rows {
		source := load(t, NodeConfig{}, webService, webSlice("web-a",
			"addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1]}, "+row.endpoint+", {addresses: [10.1.0.3]}]"))
		same(t, row.endpoint, backends(t, source), []string{"10.1.0.1:8080 rs/////", "10.1.0.3:8080 rs/////"})
		problems := input(t, source, "default", "web").Problems
		if len(problems) != 1 || problems[0].Object != "EndpointSlice default/web-a" || problems[0].Field != row.field || !strings.Contains(problems[0].Message, row.message) {
			t.Errorf("%s: problems are %+v, want field %s, message with %s", row.endpoint, problems, row.field, row.message)
		}
	}
}

func TestAnEndpointWithAnImpossibleZoneServesWithoutIt(t *testing.T) {
	source := load(t, NodeConfig{}, webService, webSlice("web-a", "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1], zone: 'no zone'}]"))
	same(t, "backends", backends(t, source), []string{"10.1.0.1:8080 rs/////"})
	same(t, "field", input(t, source, "default", "web").Problems[0].Field, "endpoints[0].zone")
}

func TestASliceThatBreaksARuleIsRefusedWithItsField(t *testing.T) {
	good := "addressType: IPv4, ports: [{name: http, port: 80}], endpoints: []"
	rows := []struct{ text, field string }{
		{webSlice("web-a", "ports: [{port: 80}]"), "addressType"},
		{webSlice("web-a", "addressType: IPX, ports: [{port: 80}]"), "addressType"},
		{webSlice("web-a", "addressType: IPv4, ports: [{port: 65536}]"), "ports[0].port"},
		{webSlice("web-a", "addressType: IPv4, ports: [{port: -1}]"), "ports[0].port"},
		{webSlice("web-a", "addressType: IPv4, ports: [{port: 80, protocol: tcp}]"), "ports[0].protocol"},
		{webSlice("web-a", "addressType: IPv4, ports: [{port: 80, name: A}]"), "ports[0].name"},
		{webSlice("web-a", "addressType: IPv4, ports: [{port: 80, name: a}, {port: 81, name: a}]"), "ports[1].name"},
		{webSlice("web-a", "addressType: IPv4, ports: [{port: 80}], endpoints: ["+strings.Repeat("{addresses: [10.1.0.1]}, ", 1001)+"]"), "endpoints"},
		{webSlice("web-a", "addressType: IPv4, ports: [{port: 80}], endpoints: [{addresses: 10.1.0.1}]"), "endpoints.addresses"},
		{webSlice("web_a", good), "metadata.name"},
		{webSlice(strings.Repeat("a.", 127), good), "metadata.name"},
		{"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a, labels: {kubernetes.io/service-name: 'a b'}}, " + good + "}", "metadata.labels"},
	}
	for _, row := range rows {
		_, err := Load([]string{"-"}, strings.NewReader(row.text), NodeConfig{}, nil)
		var refusal *ObjectError
		if !errors.As(err, &refusal) || refusal.Field != row.field {
			t.Errorf("%.150s: error is %v, want field %s", row.text, err, row.field)
		}
	}
}

// A2: the longest name, with dots; the owner is the label's, whatever the name looks like.
func TestTheNameOfASliceSaysNothing(t *testing.T) {
	name := strings.Repeat("other.", 42) + "a"
	if len(name) != 253 {
		t.Fatalf("the name has %d characters", len(name))
	}
	source := load(t, NodeConfig{}, webService, webSlice(name, "addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.1.0.1]}]"))
	same(t, "backends", backends(t, source), []string{"10.1.0.1:8080 rs/////"})
}

func TestSlicesThatServeNothing(t *testing.T) {
	endpoints := "endpoints: [{addresses: [10.1.0.1]}]"
	rows := []struct{ name, text, field string }{
		{"A6: FQDN", webSlice("web-a", "addressType: FQDN, ports: [{name: http, port: 80}], endpoints: [{addresses: [a.example.org]}]"), "addressType"},
		{"no port number", webSlice("web-a", "addressType: IPv4, ports: [{name: http}], "+endpoints), "ports[0].port"},
		{"port 0", webSlice("web-a", "addressType: IPv4, ports: [{name: http, port: 0}], "+endpoints), "ports[0].port"},
		{"headless", strings.Replace(webSlice("web-a", "addressType: IPv4, ports: [{name: http, port: 80}], "+endpoints), "labels: {", "labels: {service.kubernetes.io/headless: '', ", 1), ""},
		{"A13: the label of another namespace's Service", strings.Replace(webSlice("web-a", "addressType: IPv4, ports: [{name: http, port: 80}], "+endpoints), "metadata: {", "metadata: {namespace: other, ", 1), "metadata.labels[kubernetes.io/service-name]"},
		{"A13: an owner reference does not count", "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-a, ownerReferences: [{apiVersion: v1, kind: Service, name: web, uid: u}]}, addressType: IPv4, ports: [{name: http, port: 80}], " + endpoints + "}", "metadata.labels[kubernetes.io/service-name]"},
	}
	for _, row := range rows {
		source := load(t, NodeConfig{}, webService, row.text)
		same(t, row.name, backends(t, source), []string(nil))
		fields := []string{}
		for _, p := range append(input(t, source, "default", "web").Problems, source.Problems()...) {
			fields = append(fields, p.Field)
		}
		if strings.Join(fields, " ") != row.field {
			t.Errorf("%s: problems of %q, want %q", row.name, fields, row.field)
		}
	}
}

// A12, A14, A15: slices of any manager, of any port number, add to the same set; slices are ordered by name.
func TestSlicesOfAllManagersAddUp(t *testing.T) {
	managed := func(name, manager, port, address string) string {
		return strings.Replace(webSlice(name, "addressType: IPv4, ports: [{name: http, port: "+port+"}], endpoints: [{addresses: ["+address+"]}]"),
			"labels: {", "labels: {endpointslice.kubernetes.io/managed-by: "+manager+", ", 1)
	}
	source := load(t, NodeConfig{}, webService, managed("web-c", "me", "9080", "10.1.0.3"),
		managed("web-b", "endpointslicemirroring-controller.k8s.io", "8080", "10.1.0.2"), managed("web-a", "endpointslice-controller.k8s.io", "8080", "10.1.0.1"))
	same(t, "backends", backends(t, source), []string{"10.1.0.1:8080 rs/////", "10.1.0.2:8080 rs/////", "10.1.0.3:9080 rs/////"})
	if got := input(t, source, "default", "web").Endpoints[2]; got.Slice != "web-c" || got.Port != (lb.PortKey{Name: "http", Protocol: lb.TCP}) {
		t.Errorf("the last endpoint is %+v", got)
	}
}

func TestHintsOfV1beta1AreRead(t *testing.T) {
	text := strings.Replace(webSlice("web-a", "addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.1.0.1], nodeName: n1, hints: {forZones: [{name: a}], forNodes: [{name: n1}]}}]"),
		"discovery.k8s.io/v1", "discovery.k8s.io/v1beta1", 1)
	same(t, "backends", backends(t, load(t, NodeConfig{}, webService, text)), []string{"10.1.0.1:80 rs/n1///n1/a"})
}

func TestAddressesAreReadWithKubeProxysTolerance(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.000.0.01": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "FD00:0:0::A": "fd00::a",
		"10.0.0": "", "10.0.0.256": "", "fe80::1%eth0": "", "": "", " 10.0.0.1": "", "10.0.0.1/32": "",
	} {
		got, ok := parseAddr(text)
		if ok != (want != "") || ok && got != netip.MustParseAddr(want) {
			t.Errorf("%q is %v, %v; want %q", text, got, ok, want)
		}
	}
	for text, want := range map[string]string{
		"10.1.2.3/8": "10.0.0.0/8", " 10.0.0.0/8\n": "10.0.0.0/8", "010.0.0.0/8": "10.0.0.0/8", "::/0": "::/0", "::ffff:10.0.0.0/104": "10.0.0.0/8",
		"10.0.0.0": "", "10.0.0.0/33": "", "::/129": "",
	} {
		got, ok := parsePrefix(text)
		if ok != (want != "") || ok && got != netip.MustParsePrefix(want) {
			t.Errorf("%q is %v, %v; want %q", text, got, ok, want)
		}
	}
}

// A value that is too long for a message is cut between characters.
func TestAValueInAMessageStaysText(t *testing.T) {
	for lead := range 4 {
		if got := shown(strings.Repeat("a", lead) + strings.Repeat("漢", 100)); !utf8.ValidString(got) || !strings.HasSuffix(got, "...") {
			t.Errorf("%q is no text", got)
		}
	}
}
