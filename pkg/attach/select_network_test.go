// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestNetworkDevicesLeadToHostsOffTheNode(t *testing.T) {
	s := selection{node: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, kept: map[int]bool{7: true}}
	named := selection{node: s.node, networks: []string{"eth*"}}
	unknown := selection{left: map[int]string{7: kindNetwork}}
	nodes, other := having("192.0.2.1/24"), having("198.51.100.9/24", "2001:db8:9::9/64")
	for name, row := range map[string]struct {
		selection selection
		device    device
		want      bool
	}{
		"what has the node's IPv4 address":      {s, device{kind: "device", addresses: nodes}, true},
		"what has the node's IPv6 address":      {s, device{kind: "device", addresses: having("2001:db8::1/64")}, true},
		"a bridge with the node's address":      {s, device{kind: "bridge", addresses: nodes}, true},
		"a veth with the node's address":        {s, device{kind: "veth", veth: true, peerOutside: true, addresses: nodes}, true},
		"the way of the default route":          {s, device{kind: "veth", veth: true, peerOutside: true, defaultRoute: true}, true},
		"a second card with an address":         {s, device{kind: "device", addresses: other}, true},
		"a VLAN with an address":                {s, device{kind: "vlan", addresses: other}, true},
		"a bond with an address":                {s, device{kind: "bond", addresses: other}, true},
		"a tunnel that is up":                   {s, device{kind: "vxlan"}, true},
		"a tunnel without an Ethernet header":   {s, device{kind: "wireguard", header: "none"}, true},
		"a tunnel with an address that is down": {s, device{kind: "geneve", idle: true, addresses: other}, true},
		"a device that lost its carrier":        {s, device{kind: "device", ifindex: 7, idle: true}, true},
		"not one that lost its address":         {s, device{kind: "device", ifindex: 7}, false},
		"what was one, of an unknown node":      {unknown, device{kind: "veth", veth: true, peerOutside: true, ifindex: 7, addresses: nodes}, true},
		"not another veth of an unknown node":   {unknown, device{kind: "veth", veth: true, peerOutside: true, ifindex: 8, addresses: nodes}, false},
		"not a card without an address":         {s, device{kind: "device"}, false},
		"not the kernel's own tunl0":            {s, device{kind: "ipip", header: "ipip", idle: true}, false},
		"not a bridge of pods":                  {s, device{kind: "bridge", addresses: other}, false},
		"not a pod's veth with a gateway":       {s, device{kind: "veth", veth: true, peerOutside: true, addresses: other}, false},
		"not a tap, which is a machine's":       {s, device{kind: "tap"}, false},
		"not a dummy with another address":      {s, device{kind: "dummy", addresses: other}, false},
		"not lo, though it has the address":     {s, device{kind: "device", header: "loopback", loopback: true, addresses: nodes}, false},
		"not a header that nobody knows":        {s, device{kind: "ipoib", header: "infiniband", addresses: nodes}, false},
		"what a pattern names":                  {named, device{name: "eth1", kind: "dummy"}, true},
		"with patterns nothing by the rule":     {named, device{name: "ens1", kind: "device", addresses: nodes}, false},
		"not lo, though a pattern names it": {selection{networks: []string{"*"}},
			device{name: "lo", kind: "device", header: "loopback", loopback: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if row.device.header == "" {
				row.device.header = ethernet
			}
			if got := len(row.selection.network([]device{row.device})) == 1; got != row.want {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}

func TestABridgeLeadsOutWhenACardIsInIt(t *testing.T) {
	bridge := device{name: "br0", ifindex: 3, kind: "bridge", header: ethernet, addresses: having("198.51.100.9/24")}
	card := device{name: "eth0", ifindex: 2, kind: "device", header: ethernet, master: 3}
	pod := device{name: "veth1", ifindex: 4, kind: "veth", veth: true, peerOutside: true, header: ethernet, master: 3}
	s := selection{node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	if got := s.network([]device{bridge, card, pod}); len(got) != 1 || got[0].name != "br0" {
		t.Errorf("with a card in it, got %v", got)
	}
	if got := s.network([]device{bridge, pod}); len(got) != 0 {
		t.Errorf("with pods alone in it, got %v", got)
	}
}

func TestAddressesComeInTheKernelsOrder(t *testing.T) {
	with := func(prefix string, flags, scope int) address {
		return address{netip.MustParsePrefix(prefix), flags, scope}
	}
	got := usable([]address{
		with("2001:db8::3/64", unix.IFA_F_TEMPORARY, 0),
		with("2001:db8::2/64", unix.IFA_F_DEPRECATED, 0),
		with("10.0.0.9/24", 0, unix.RT_SCOPE_LINK),
		with("2001:db8::1/64", 0, 0),
		with("2001:db8::4/64", unix.IFA_F_TENTATIVE, 0),
		with("2001:db8::5/64", unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC, 0),
		with("2001:db8::6/64", unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED, 0),
		with("127.0.0.1/8", 0, 0),
	})
	var want []netip.Addr
	for _, a := range []string{"2001:db8::1", "2001:db8::5", "2001:db8::3", "2001:db8::2", "10.0.0.9"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestAddressesThatLastAreOfANetworkAndStay(t *testing.T) {
	with := func(prefix string, flags, scope int) address {
		return address{netip.MustParsePrefix(prefix), flags, scope}
	}
	got := lasting([]address{
		with("192.0.2.1/24", 0, 0), with("192.0.2.9/24", unix.IFA_F_SECONDARY, 0), with("192.0.2.50/32", 0, 0), with("192.0.2.7/24", 0, unix.RT_SCOPE_LINK),
		with("2001:db8::1/64", 0, 0), with("2001:db8::3/64", unix.IFA_F_TEMPORARY, 0), with("2001:db8::2/64", unix.IFA_F_DEPRECATED, 0), with("2001:db8::7/128", 0, 0),
	})
	if fmt.Sprint(got) != "[192.0.2.1 2001:db8::1 192.0.2.9]" {
		t.Errorf("they are %v", got)
	}
}

// Who --net-devices leaves out is off the node all the same: the responder takes nothing that comes by there. A bridge may have pods in it.
func TestADeviceThatLeadsOutIsOutsideThoughOthersAreNamed(t *testing.T) {
	card := device{name: "eth0", ifindex: 2, kind: "device", header: ethernet, addresses: having("192.0.2.1/24")}
	other := device{name: "eth1", ifindex: 5, kind: "device", header: ethernet, addresses: having("198.51.100.9/24", "2001:db8::9/64")}
	bridge := device{name: "br0", ifindex: 3, kind: "bridge", header: ethernet, addresses: having("10.244.0.1/24"), defaultRoute: true}
	pod := device{name: "veth1", ifindex: 4, kind: "veth", veth: true, peerOutside: true, header: ethernet, master: 3}
	all := []device{card, bridge, pod, other}
	for _, row := range []struct {
		named []string
		want  []int
	}{{nil, []int{2, 3, 5}}, {[]string{"eth0"}, []int{2, 5}}, {[]string{"eth0", "br0"}, []int{2, 3, 5}}} {
		s := selection{node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, networks: row.named}
		if got := s.outside(all); !slices.Equal(got, row.want) {
			t.Errorf("with --net-devices %v, outside are %v, want %v", row.named, got, row.want)
		}
	}
}
