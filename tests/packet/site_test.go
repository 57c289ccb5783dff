// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// site is a node's place in the network: a device towards clients, another towards the other nodes, and real routes. The kernel
// takes test frames for ones that the loopback device received: routes from there are asked for.
type site struct {
	*rig
	clients, nodes netlink.Link
}

// snatPorts are few, so that tests can use them all.
func snatPorts() maps.PortRange { return maps.PortRange{First: 61000, Last: 61039} }

// own is the node's address on the device towards other nodes, which SNAT uses.
func (w world) own() netip.Addr { return w.addr("172.31.0.", "fd00:31::", 1) }

// forEachSite runs a test for both families of each protocol, each in a network namespace that is built once.
func forEachSite(t *testing.T, o bpf.Options, test func(site, world), protocols ...lb.Protocol) {
	t.Helper()
	privileged.Namespace(t, func(*os.File) {
		s := newSite(t, newRig(t, o))
		for _, w := range worlds(protocols...) {
			w.door = networkDoor
			sub := s
			sub.rig = s.rig.in(t).at(w)
			if test(sub, w); t.Failed() {
				t.Errorf("in world %s", w)
				return
			}
		}
	})
}

func newSite(t testing.TB, r *rig) site {
	t.Helper()
	check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
	return joinSite(t, site{
		rig:     r,
		clients: addDevice(t, "clients", "192.0.2.2/24", "2001:db8:2::2/64"),
		nodes:   addDevice(t, "nodes", "172.31.0.1/24", "fd00:31::1/64"),
	})
}

// joinSite makes routes over the two devices.
func joinSite(t testing.TB, s site) site {
	t.Helper()
	check(t, errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
	))
	for _, w := range worlds(lb.TCP) {
		addNeighbour(t, s.clients, w.router())
		addNeighbour(t, s.nodes, w.addr("172.31.0.", "fd00:31::", 2))
		everything := &net.IPNet{IP: make(net.IP, w.router().BitLen()/8), Mask: make(net.IPMask, w.router().BitLen()/8)}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: s.clients.Attrs().Index, Dst: everything, Gw: w.router().AsSlice()}); err != nil {
			t.Fatalf("add the default route: %v", err)
		}
		s.route(w, &netlink.Route{LinkIndex: s.nodes.Attrs().Index, Gw: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()})
	}
	s.configure(snatPorts())
	s.serveXDP(s.clients, s.nodes)
	return s
}

func (s site) configure(ports maps.PortRange) {
	s.Helper()
	four, six := netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("fd00:31::1")
	check(s, s.tables.Configure(maps.Config{
		ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), SNATPorts: ports,
		Devices: map[uint32]maps.DeviceSources{uint32(s.nodes.Attrs().Index): {Source4: four, Source6: six}},
	}))
}

// route says how the pods of other nodes are reached.
func (s site) route(w world, r *netlink.Route) {
	s.Helper()
	pods := netip.PrefixFrom(w.pod(0), map[bool]int{false: 24, true: 64}[w.v6]).Masked()
	r.Dst = &net.IPNet{IP: pods.Addr().AsSlice(), Mask: net.CIDRMask(pods.Bits(), pods.Addr().BitLen())}
	if err := netlink.RouteReplace(r); err != nil {
		s.Fatalf("route %s: %v", r, err)
	}
	s.forgetWays()
}

// addDevice makes a device that takes frames for the rig's host.
func addDevice(t testing.TB, name string, addresses ...string) netlink.Link {
	t.Helper()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = name
	check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: name + "-peer"}))
	upDevice(t, name+"-peer")
	return upDevice(t, name, addresses...)
}

func upDevice(t testing.TB, name string, addresses ...string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	check(t, err)
	check(t, netlink.LinkSetUp(link))
	for _, a := range addresses {
		address, err := netlink.ParseIPNet(a)
		check(t, err)
		check(t, privileged.AddAddress(link, address))
	}
	return link
}

func addNeighbour(t testing.TB, link netlink.Link, ip netip.Addr) {
	t.Helper()
	if len(link.Attrs().HardwareAddr) == 0 {
		return // such devices have none
	}
	err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: podMAC})
	if err != nil {
		t.Fatalf("add neighbour %s: %v", ip, err)
	}
}

// routed is a frame of p after one router.
func routed(p packet) []byte { return aged(p.bytes()) }

// aged is the frame after one router.
func aged(frame []byte) []byte {
	frame = bytes.Clone(frame)
	if frame[14]>>4 == 6 {
		frame[14+7]--
		return frame
	}
	frame[14+8]--
	frame[14+10], frame[14+11] = 0, 0
	header := frame[14 : 14+int(frame[14]&15)*4]
	binary.BigEndian.PutUint16(frame[14+10:], ^uint16(sum(0, header)))
	return frame
}
