// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
)

func nodeObject(name, labels string, addresses ...string) string {
	for i, a := range addresses {
		kind, ip, _ := strings.Cut(a, " ")
		addresses[i] = fmt.Sprintf("{type: %s, address: '%s'}", kind, ip)
	}
	return "{apiVersion: v1, kind: Node, metadata: {name: " + name + ", labels: {" + labels + "}}, status: {addresses: [" + strings.Join(addresses, ", ") + "]}}"
}

func ips(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// B11: a node with labels, without, and one that no object tells of.
func TestTheOwnNodeIsWhatItsObjectSays(t *testing.T) {
	objects := nodeObject("n1", "topology.kubernetes.io/zone: a, topology.kubernetes.io/region: r",
		"ExternalIP 203.0.113.1", "Hostname n1", "InternalIP 192.0.2.1", "InternalIP 2001:db8::1", "InternalIP 192.0.2.2") + "\n---\n" + nodeObject("n2", "")
	placed := func(zone string) lb.Labels {
		return lb.NewLabels(map[string]string{"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "r"})
	}
	rows := []struct {
		name string
		cfg  NodeConfig
		want lb.Node
	}{
		{"labels and addresses", NodeConfig{Name: "n1"}, lb.Node{Name: "n1", Zone: "a", Region: "r", Labels: placed("a"),
			Addresses: ips("192.0.2.1", "2001:db8::1", "192.0.2.2", "203.0.113.1"), NodePortIPs: ips("192.0.2.1", "192.0.2.2", "203.0.113.1", "2001:db8::1")}},
		{"nothing", NodeConfig{Name: "n2"}, lb.Node{Name: "n2"}},
		{"flags win", NodeConfig{Name: "n1", Zone: "z", IPs: ips("192.0.2.9")}, lb.Node{Name: "n1", Zone: "z", Region: "r", Labels: placed("z"),
			Addresses: ips("192.0.2.9"), NodePortIPs: ips("192.0.2.9")}},
		{"flags stand in", NodeConfig{Name: "n3", Zone: "z", IPs: ips("192.0.2.9")}, lb.Node{Name: "n3", Zone: "z",
			Labels: lb.NewLabels(map[string]string{"topology.kubernetes.io/zone": "z"}), Addresses: ips("192.0.2.9"), NodePortIPs: ips("192.0.2.9")}},
	}
	for _, row := range rows {
		same(t, row.name, load(t, row.cfg, objects).Node(), row.want)
	}
}

func TestAnUnknownNodeHasNoPlaceAndIsWarnedOf(t *testing.T) {
	var warnings []string
	source, err := Load([]string{"-"}, strings.NewReader(""), NodeConfig{Name: "n9"}, func(w string) { warnings = append(warnings, w) })
	if err != nil {
		t.Fatal(err)
	}
	same(t, "node", source.Node(), lb.Node{Name: "n9"})
	same(t, "warnings", warnings, []string{"Node n9: no such object: this node has no zone and no addresses"})
}

func TestNodePortsAnswerOnTheConfiguredAddresses(t *testing.T) {
	all := []string{"192.0.2.1", "198.51.100.1", "2001:db8::1", "2001:db8:1::1"}
	rows := []struct {
		config string
		want   []string
	}{
		{"", all},
		{"primary", []string{"198.51.100.1", "2001:db8:1::1"}},
		{"192.0.2.0/24", []string{"192.0.2.1", "2001:db8::1", "2001:db8:1::1"}}, // no CIDR of IPv6: all of IPv6
		{"192.0.2.0/24 2001:db8::/64", []string{"192.0.2.1", "2001:db8::1"}},
		{"192.0.2.0/24 0.0.0.0/0 2001:db8::/64", []string{"192.0.2.1", "198.51.100.1", "2001:db8::1"}},
		{"10.0.0.0/8 ::/0", []string{"2001:db8::1", "2001:db8:1::1"}},
	}
	for _, row := range rows {
		cfg := NodeConfig{NodePortAddresses: strings.Fields(row.config)}
		if err := cfg.Validate(); err != nil {
			t.Errorf("%q: %v", row.config, err)
		}
		got := cfg.NodePortIPs(ips("198.51.100.1", "2001:db8:1::1"), ips("192.0.2.1", "2001:db8::1"))
		same(t, row.config, got, ips(row.want...))
	}
	for _, bad := range []string{"192.0.2.1", "primary 10.0.0.0/8", "all"} {
		if (NodeConfig{NodePortAddresses: strings.Fields(bad)}).Validate() == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// A11: the endpoint's own zone, else its Node's; the region is the Node's. What is missing is unknown, not an error.
func TestEndpointsTakeTheirPlaceFromTheirNode(t *testing.T) {
	source := load(t, NodeConfig{}, webService, nodeObject("n1", "topology.kubernetes.io/zone: a, topology.kubernetes.io/region: r"), nodeObject("n2", ""),
		webSlice("web-a", `addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [
			{addresses: [10.1.0.1], nodeName: n1}, {addresses: [10.1.0.2], nodeName: n1, zone: b},
			{addresses: [10.1.0.3], nodeName: n2}, {addresses: [10.1.0.4], nodeName: n3, zone: c}, {addresses: [10.1.0.5]}]`))
	same(t, "backends", backends(t, source), []string{"10.1.0.1:80 rs/n1/a/r//", "10.1.0.2:80 rs/n1/b/r//", "10.1.0.3:80 rs/n2////",
		"10.1.0.4:80 rs/n3/c///", "10.1.0.5:80 rs/////"})
}

// B16, C22: the API server's own endpoints say no node; the address tells.
func TestAnEndpointWithoutNodeBelongsToTheNodeThatHasItsAddress(t *testing.T) {
	source := load(t, NodeConfig{Name: "n1", Zone: "z"}, webService,
		nodeObject("n1", "topology.kubernetes.io/zone: a", "InternalIP 192.0.2.1"),
		nodeObject("n2", "topology.kubernetes.io/zone: b", "InternalIP 192.0.2.2", "ExternalIP 203.0.113.2"),
		nodeObject("n3", "", "InternalIP 192.0.2.2"), // the same address again: the first name has it
		webSlice("web-a", `addressType: IPv4, ports: [{name: http, port: 6443}], endpoints: [
			{addresses: [192.0.2.1]}, {addresses: [192.0.2.2]}, {addresses: [203.0.113.2]}, {addresses: [192.0.2.3]}, {addresses: [192.0.2.2], nodeName: n3}]`))
	same(t, "backends", backends(t, source), []string{"192.0.2.1:6443 rs/n1/z///", "192.0.2.2:6443 rs/n2/b///", "203.0.113.2:6443 rs/n2/b///",
		"192.0.2.3:6443 rs/////", "192.0.2.2:6443 rs/n3////"})
	source = load(t, NodeConfig{Name: "n0", IPs: ips("192.0.2.1")}, webService,
		webSlice("web-a", "addressType: IPv4, ports: [{name: http, port: 6443}], endpoints: [{addresses: [192.0.2.1]}]"))
	same(t, "backends by flag", backends(t, source), []string{"192.0.2.1:6443 rs/n0////"})
}

func TestABadNodeAddressIsAProblem(t *testing.T) {
	source := load(t, NodeConfig{Name: "n1"}, nodeObject("n1", "", "InternalIP 192.0.2", "InternalIP 192.0.2.1"))
	same(t, "addresses", source.Node().Addresses, ips("192.0.2.1"))
	same(t, "problems", source.Problems(), []lb.Problem{{Object: "Node n1", Field: "status.addresses[0].address", Message: `"192.0.2": must be a valid IP address`}})
}

func TestServiceCIDRsComeFromObjectsUnlessFlagsSay(t *testing.T) {
	objects := []string{
		"{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16, 'fd00::/108']}}",
		"{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: more}, spec: {cidrs: [10.95.0.0/16]}}",
	}
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	same(t, "objects", load(t, NodeConfig{}, objects...).ServiceCIDRs(), prefixes("10.95.0.0/16", "10.96.0.0/16", "fd00::/108"))
	same(t, "flags", load(t, NodeConfig{ServiceCIDRs: prefixes("10.0.0.0/8")}, objects...).ServiceCIDRs(), prefixes("10.0.0.0/8"))
	for _, bad := range []string{"[]", "[10.96.0.0]", "[10.96.0.0/40]"} {
		_, err := Load([]string{"-"}, strings.NewReader("{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: k}, spec: {cidrs: "+bad+"}}"), NodeConfig{}, nil)
		if err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// Two Nodes that claim one address, as where a Node was replaced under another name, are told of with addresses of one alone each: of the
// first by name, of the own one where its flags say so, whatever came first.
func TestAnAddressIsOfOneNodeAlone(t *testing.T) {
	first := nodeObject("n1", "", "InternalIP 192.0.2.1", "InternalIP 2001:db8::1")
	second := nodeObject("n2", "", "InternalIP 192.0.2.1", "InternalIP 2001:db8::2")
	third := nodeObject("n3", "", "InternalIP 192.0.2.3")
	for _, objects := range []string{first + "\n---\n" + second + "\n---\n" + third, third + "\n---\n" + second + "\n---\n" + first} {
		same(t, "by name", load(t, NodeConfig{Name: "n3", AllNodes: true}, objects).Nodes(), map[string][]netip.Addr{
			"n1": ips("192.0.2.1", "2001:db8::1"), "n2": ips("2001:db8::2"), "n3": ips("192.0.2.3")})
		same(t, "by flags", load(t, NodeConfig{Name: "n2", AllNodes: true, IPs: ips("192.0.2.1", "2001:db8::2")}, objects).Nodes(), map[string][]netip.Addr{
			"n1": ips("2001:db8::1"), "n2": ips("192.0.2.1", "2001:db8::2"), "n3": ips("192.0.2.3")})
	}
}
