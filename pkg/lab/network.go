// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Network is how the pods of one node reach those of another.
type Network uint8

const (
	// Routed: each node has a link of its own to the router, which knows every node's pods.
	Routed Network = iota
	// Shared: the nodes, the router and hosts outside are on one Ethernet segment. Nodes know each other's pods.
	Shared
	// Tunneled: as Routed, but pods reach those of other nodes through VXLAN devices, and the router knows no pods.
	Tunneled
)

// segmentName is the router's bridge of a Shared network.
const segmentName = "segment"

// plug is how a host is connected to the router: addresses of both ends and the length of their subnet's prefix.
type plug struct {
	own, router netip.Addr
	bits        int
}

// plug connects a device to the router, by way of which everything goes from there. With a Shared network it becomes a port of the router's bridge.
func (l *Lab) plug(ns *Namespace, device, port string, mtu int, plugs ...plug) error {
	if err := join(end{ns, device}, end{l.Router, port}, mtu); err != nil {
		return err
	}
	if l.options.XDP {
		if err := errors.Join(l.Router.DisableOffloads(port), ns.DisableOffloads(device), l.Router.EnableGRO(port), ns.EnableGRO(device)); err != nil {
			return err
		}
	}
	if l.options.Network == Shared {
		if err := l.Router.addPort(segmentName, port); err != nil {
			return err
		}
	}
	for _, p := range plugs {
		err := ns.addAddress(device, netip.PrefixFrom(p.own, p.bits))
		if l.options.Network != Shared {
			err = errors.Join(err, l.Router.addAddress(port, netip.PrefixFrom(p.router, p.bits)))
		}
		if err = errors.Join(err, ns.addRoute(device, everything(p.own), p.router)); err != nil {
			return err
		}
	}
	return nil
}

// addSegment gives the router the bridge of a Shared network, with its only addresses.
func (l *Lab) addSegment() error {
	return errors.Join(
		l.Router.addBridge(segmentName, l.options.MTU, 0),
		l.Router.addAddress(segmentName, netip.PrefixFrom(uplink4(0, true), 16)),
		l.Router.addAddress(segmentName, netip.PrefixFrom(uplink6(0, true), 32)),
	)
}

// plugs are the node's two addresses on the way to the router.
func (n *Node) plugs() []plug {
	if n.lab.options.Network == Shared {
		return []plug{{n.V4, uplink4(0, true), 16}, {n.V6, uplink6(0, true), 32}}
	}
	return []plug{{n.V4, uplink4(n.number, true), 24}, {n.V6, uplink6(n.number, true), 64}}
}

// routerDevice is the router's device towards the node.
func (n *Node) routerDevice() string {
	if n.lab.options.Network == Shared {
		return segmentName
	}
	return n.port()
}

func (n *Node) port() string { return fmt.Sprintf("port%d", n.number) }

// connect makes the uplink and routes to and from the node's pods.
func (n *Node) connect() error {
	if err := n.forward(); err != nil {
		return err
	}
	if err := n.lab.plug(n.Namespace, Uplink, n.port(), n.Options.UplinkMTU, n.plugs()...); err != nil {
		return err
	}
	if n.lab.options.Unrouted {
		return nil
	}
	others := n.lab.nodes[:len(n.lab.nodes)-1]
	if n.lab.options.Network == Tunneled {
		return n.addTunnel(others)
	}
	for _, pods := range n.PodSubnets() {
		err := n.lab.Router.addRoute(n.routerDevice(), pods, n.Address(pods.Addr().Is6()))
		if err != nil {
			return err
		}
	}
	if n.lab.options.Network == Shared {
		return eachPair(n, others, (*Node).routeTo)
	}
	return nil
}

// eachPair calls f for the node and each of the others, in both directions.
func eachPair(n *Node, others []*Node, f func(from, to *Node) error) error {
	for _, o := range others {
		if err := errors.Join(f(n, o), f(o, n)); err != nil {
			return err
		}
	}
	return nil
}

// routeTo sends packets for another node's pods to that node directly.
func (n *Node) routeTo(o *Node) error {
	var errs []error
	for _, pods := range o.PodSubnets() {
		errs = append(errs, n.addRoute(Uplink, pods, o.Address(pods.Addr().Is6())))
	}
	return errors.Join(errs...)
}

// PodSubnets are those of the addresses of the node's pods, one of each family.
func (n *Node) PodSubnets() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(pod4(n.number, 0), 24), netip.PrefixFrom(pod6(n.number, 0), 64)}
}

// Attract has the router send packets for these addresses to the node, as a load balancer or BGP would.
func (n *Node) Attract(prefixes ...netip.Prefix) error {
	for _, p := range prefixes {
		err := n.lab.Router.addRoute(n.routerDevice(), p, n.Address(p.Addr().Is6()))
		if err != nil {
			return err
		}
	}
	return nil
}

// Source is the address that the node's routing gives to a connection of its own with this peer.
func (n *Node) Source(to netip.Addr) (netip.Addr, error) {
	routes, err := n.link.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{})
	if err != nil || len(routes) == 0 {
		return netip.Addr{}, fmt.Errorf("ask %s for the route to %s: %w", n.Name, to, err)
	}
	source, _ := netip.AddrFromSlice(routes[0].Src)
	return source.Unmap(), nil
}
