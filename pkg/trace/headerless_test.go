// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// The programs of devices without an Ethernet header send nothing into the tunnel (tunnel_way): a client that comes by one goes by SNAT, and one
// that comes by another device does not.
func TestAClientThatComesByADeviceWithoutEthernetHeaderTakesNoTunnel(t *testing.T) {
	pins := privileged.Bpffs(t)
	privileged.Namespace(t, func(*os.File) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, family := range []string{"ipv4", "ipv6"} {
			must(os.WriteFile("/proc/sys/net/"+family+"/conf/all/forwarding", []byte("1"), 0))
		}
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun1"}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, Queues: 1, NonPersist: true}
		must(netlink.LinkAdd(tun))
		defer func() {
			for _, f := range tun.Fds {
				f.Close()
			}
		}()
		wire := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"}
		must(netlink.LinkAdd(wire))
		for name, prefixes := range map[string][]string{"eth0": {"192.0.2.0/24", "2001:db8::/64", "198.51.100.0/24", "2001:db8:5::/64", "10.244.2.0/24", "fd00:10:244:2::/64"},
			"eth1": nil, "tun1": {"203.0.113.0/24", "2001:db8:7::/64"}} {
			link, err := netlink.LinkByName(name)
			must(err)
			must(netlink.LinkSetUp(link))
			for _, text := range prefixes {
				prefix, err := netlink.ParseIPNet(text)
				must(err)
				must(netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefix, Scope: netlink.SCOPE_LINK}))
			}
		}
		for _, text := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
			address, err := netlink.ParseIPNet(text)
			must(err)
			must(privileged.AddAddress(wire, address))
		}
		live, err := bpf.Load(bpf.Options{PinPath: pins, Sizes: bpf.Sizes{FlowSets: 16, Slots: 1 << 16}})
		must(err)
		defer live.Close()
		publisher, err := maps.Open(&live.NearlbMaps)
		must(err)
		node := lb.Node{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
		config := maps.Config{SNATPorts: maps.DefaultSNATPorts(), Tunnel: maps.Tunnel{Port: 6097, Nodes: map[string]maps.TunnelNode{
			"n2": {Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}, Carries: true}}}}
		eth0, err := netlink.LinkByName("eth0")
		must(err)
		config.Devices = map[uint32]maps.DeviceSources{uint32(eth0.Attrs().Index): {Source4: node.Addresses[0], Source6: node.Addresses[1]}}
		must(publisher.Configure(config.WithNode(node)))
		_, err = publisher.Apply(decide.Decide(farAway(), node))
		must(err)
		tracer, err := Live(pins)
		must(err)
		defer tracer.Close()
		for _, ask := range []struct {
			client, to string
			way        lb.OffNode
			because    string
		}{
			{"198.51.100.7", "10.96.0.10", lb.OffNodeCarry, "says"},
			{"2001:db8:5::7", "fd00:10:96::a", lb.OffNodeCarry, "says"},
			{"203.0.113.7", "10.96.0.10", lb.OffNodeSNAT, "tun1"},
			{"2001:db8:7::7", "fd00:10:96::a", lb.OffNodeSNAT, "tun1"},
		} {
			for _, protocol := range []lb.Protocol{lb.TCP, lb.UDP} {
				answer, err := tracer.Do(Request{From: FromNetwork, Source: netip.AddrPortFrom(netip.MustParseAddr(ask.client), 0), To: netip.AddrPortFrom(netip.MustParseAddr(ask.to), 80), Protocol: protocol})
				must(err)
				if answer.Way == nil || answer.Way.Name != ask.way || !strings.Contains(answer.Way.Because, ask.because) || answer.SNAT != (ask.way == lb.OffNodeSNAT) {
					t.Errorf("%v of %s: %+v by the way %+v, want %s because of %q", protocol, ask.client, answer, answer.Way, ask.way, ask.because)
				}
			}
		}
	})
}

// farAway is a Service whose backends are on another node, and which asks for the tunnel.
func farAway() lb.Input {
	input := lb.Input{Service: lb.Service{
		Name: lb.ServiceName{Namespace: "default", Name: "far"}, Type: lb.TypeClusterIP, OffNode: lb.OffNodeCarry,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}, Internal: lb.PolicyCluster, External: lb.PolicyCluster,
		Ports: []lb.ServicePort{{Name: "t", Protocol: lb.TCP, Port: 80}, {Name: "u", Protocol: lb.UDP, Port: 80}},
	}}
	for _, address := range []string{"10.244.2.1:80", "[fd00:10:244:2::1]:80"} {
		for _, port := range input.Service.Ports {
			input.Endpoints = append(input.Endpoints, lb.Endpoint{
				Port: lb.PortKey{Name: port.Name, Protocol: port.Protocol}, Address: netip.MustParseAddrPort(address), Ready: true, Serving: true, Slice: "far-1", Node: "n2",
			})
		}
	}
	return input
}
