// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tunnel is the name of a node's VXLAN device in a Tunneled network.
const Tunnel = "vxlan"

// tunnelHeaders is what VXLAN over IPv4 adds to a packet: an Ethernet, an IPv4, a UDP and its own header.
const tunnelHeaders = 50

// addTunnel makes the node's VXLAN device, and says where each node is: nothing is learned, as with flannel. The device
// has the first address of the node's pod subnets, which is the source of what the node itself sends to pods elsewhere.
func (n *Node) addTunnel(others []*Node) error {
	uplink, err := n.link.LinkByName(Uplink)
	if err != nil {
		return err
	}
	device := &netlink.Vxlan{
		LinkAttrs:    netlink.LinkAttrs{Name: Tunnel, MTU: n.Options.UplinkMTU - tunnelHeaders, HardwareAddr: n.tunnelAddress()},
		VxlanId:      1,
		VtepDevIndex: uplink.Attrs().Index,
		SrcAddr:      n.V4.AsSlice(),
		Port:         4789,
	}
	if err := n.link.LinkAdd(device); err != nil {
		return fmt.Errorf("add VXLAN device: %w", err)
	}
	err = n.up(Tunnel)
	for _, pods := range n.PodSubnets() {
		err = errors.Join(err, n.addAddress(Tunnel, single(pods.Addr())))
	}
	return errors.Join(err, eachPair(n, others, (*Node).tunnelTo))
}

func (n *Node) tunnelAddress() net.HardwareAddr {
	return net.HardwareAddr{0x02, 0, 0, 0, 1, byte(n.number)}
}

// tunnelTo sends packets for another node's pods through the tunnel.
func (n *Node) tunnelTo(o *Node) error {
	device, err := n.link.LinkByName(Tunnel)
	if err != nil {
		return err
	}
	entry := netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT, HardwareAddr: o.tunnelAddress()}
	where := entry
	where.Family, where.Flags, where.IP = unix.AF_BRIDGE, netlink.NTF_SELF, o.V4.AsSlice()
	errs := []error{n.link.NeighAppend(&where)}
	for _, pods := range o.PodSubnets() {
		gateway := entry
		gateway.IP = pods.Addr().AsSlice()
		errs = append(errs, n.link.NeighSet(&gateway), n.addRoute(Tunnel, pods, pods.Addr()))
	}
	return errors.Join(errs...)
}
