// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func writeSysctl(setting string) error {
	path, value, _ := strings.Cut(setting, "=")
	if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	return nil
}

// end is one side of a veth pair.
type end struct {
	ns   *Namespace
	name string
}

// join connects two namespaces by a veth pair and sets both ends up. Both carry packets when it returns.
func join(a, b end, mtu int) error {
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: a.name, MTU: mtu},
		PeerName:      b.name,
		PeerMTU:       uint32(mtu),
		PeerNamespace: netlink.NsFd(b.ns.file.Fd()),
	}
	if err := a.ns.link.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s of %s: %w", a.name, a.ns.Name, err)
	}
	for _, e := range []end{a, b} {
		if err := e.ns.up(e.name); err != nil {
			return err
		}
	}
	return errors.Join(a.ns.awaitCarrier(a.name), b.ns.awaitCarrier(b.name))
}

// awaitCarrier waits for the kernel to notice that a device has its other end: until then it drops what is sent.
func (ns *Namespace) awaitCarrier(name string) error {
	var link netlink.Link
	var err error
	if soon(func() bool {
		link, err = ns.link.LinkByName(name)
		return err != nil || link.Attrs().OperState == netlink.OperUp
	}) != nil {
		return fmt.Errorf("await carrier of %s of %s: it is %s", name, ns.Name, link.Attrs().OperState)
	}
	return err
}

// addBridge makes a bridge that is up. The number becomes part of its own Ethernet address: a bridge without one takes its
// ports' lowest, which changes as they come and go.
func (ns *Namespace) addBridge(name string, mtu, number int) error {
	off := false
	bridge := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name, MTU: mtu, HardwareAddr: net.HardwareAddr{0x02, 0, 0, 0, 0, byte(number)}},
		MulticastSnooping: &off,
	}
	if err := ns.link.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s to %s: %w", name, ns.Name, err)
	}
	return ns.up(name)
}

// addPort makes a device a port of a bridge.
func (ns *Namespace) addPort(bridge, device string) error {
	master, err := ns.link.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s of %s: %w", bridge, ns.Name, err)
	}
	port, err := ns.link.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s of %s: %w", device, ns.Name, err)
	}
	return errors.Join(ns.link.LinkSetMaster(port, master), ns.link.LinkSetHairpin(port, false), ns.awaitCarrier(bridge))
}

func (ns *Namespace) up(name string) error {
	link, err := ns.link.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find device %s of %s: %w", name, ns.Name, err)
	}
	if err := ns.link.LinkSetUp(link); err != nil {
		return fmt.Errorf("set device %s of %s up: %w", name, ns.Name, err)
	}
	return nil
}

// addAddress gives a device an address that is usable at once.
func (ns *Namespace) addAddress(device string, prefix netip.Prefix) error {
	link, err := ns.link.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s of %s: %w", device, ns.Name, err)
	}
	address := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := ns.link.AddrAdd(link, address); err != nil {
		return fmt.Errorf("add address %s to %s of %s: %w", prefix, device, ns.Name, err)
	}
	return ns.awaitOwn(prefix.Addr(), link.Attrs().Index)
}

// awaitOwn waits for the kernel to take what is sent to an address for its own: with IPv6 it does so some time after the call
// that adds the address.
func (ns *Namespace) awaitOwn(a netip.Addr, device int) error {
	var routes []netlink.Route
	var err error
	if soon(func() bool {
		routes, err = ns.link.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{OifIndex: device})
		return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
	}) != nil {
		return fmt.Errorf("await address %s of %s: %v, %v", a, ns.Name, routes, err)
	}
	return nil
}

// addRoute sends a prefix through a device, by way of a gateway if it is valid. The gateway counts as being on the link.
func (ns *Namespace) addRoute(device string, to netip.Prefix, via netip.Addr) error {
	link, err := ns.link.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s of %s: %w", device, ns.Name, err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to)}
	if via.IsValid() {
		route.Gw = via.AsSlice()
		route.Flags = int(netlink.FLAG_ONLINK)
	} else if to.Addr().Is4() {
		route.Scope = netlink.SCOPE_LINK
	}
	if err := ns.link.RouteAdd(route); err != nil {
		return fmt.Errorf("add route %s to %s of %s: %w", to, device, ns.Name, err)
	}
	return nil
}

// SetMTU sets a device's MTU in bytes, without its Ethernet header.
func (ns *Namespace) SetMTU(device string, mtu int) error {
	link, err := ns.link.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s of %s: %w", device, ns.Name, err)
	}
	if err := ns.link.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("set MTU of %s of %s: %w", device, ns.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// everything is the default route's prefix of an address's family.
func everything(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
