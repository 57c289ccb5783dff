// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// driver is what a device's driver can do at XDP, as the kernel's family netdev says (Linux 6.3). The zero value is a driver of which
// nothing is said.
type driver struct {
	said  bool
	takes bool // programs, which may pass, drop and send back (NETDEV_XDP_ACT_BASIC)
	sends bool // packets that other devices' programs redirect to it (NETDEV_XDP_ACT_NDO_XMIT)
}

// The family netdev of generic netlink, include/uapi/linux/netdev.h.
const (
	netdevFamily  = "netdev"
	netdevChanges = "mgmt" // its multicast group
	netdevVersion = 1

	netdevDevGet    = 1 // commands
	netdevDevChange = 4

	netdevIfindex     = 1 // attributes: u32
	netdevXDPFeatures = 3 // u64

	netdevXDPBasic  = 1 << 0 // features: enum netdev_xdp_act
	netdevXDPTarget = 1 << 2
)

// readDriver asks the kernel. One that has no such family says nothing.
func readDriver(ifindex int) (driver, error) {
	answers, err := askFamily(netdevFamily, netdevVersion, netdevDevGet, 0, nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(ifindex))))
	if err != nil {
		return driver{}, fmt.Errorf("ask what the driver can do at XDP: %w", err)
	}
	for _, answer := range answers {
		if features, ok := netdevAttribute(answer, netdevXDPFeatures); ok && len(features) == 8 {
			f := binary.NativeEndian.Uint64(features)
			return driver{said: true, takes: f&netdevXDPBasic != 0, sends: f&netdevXDPTarget != 0}, nil
		}
	}
	return driver{}, nil
}

// netdevAttribute is an attribute of a message of the family.
func netdevAttribute(message []byte, kind uint16) ([]byte, bool) {
	if len(message) < nl.SizeofGenlmsg {
		return nil, false
	}
	attributes, err := nl.ParseRouteAttr(message[nl.SizeofGenlmsg:])
	if err != nil {
		return nil, false
	}
	for _, a := range attributes {
		if a.Attr.Type == kind {
			return a.Value, true
		}
	}
	return nil, false
}

// listenToDrivers is the kernel's stream of what drivers can do from now on; nil: it has none.
func listenToDrivers() (*nl.NetlinkSocket, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("ask for netlink family %s: %w", netdevFamily, err)
	}
	for _, group := range family.Groups {
		if group.Name != netdevChanges {
			continue
		}
		socket, err := nl.Subscribe(unix.NETLINK_GENERIC)
		if err != nil {
			return nil, fmt.Errorf("subscribe to netlink: %w", err)
		}
		if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(group.ID)); err != nil {
			socket.Close()
			return nil, fmt.Errorf("subscribe to netlink family %s: %w", netdevFamily, err)
		}
		return socket, nil
	}
	return nil, nil
}

// driverChanged is the device whose driver can do something else after a message.
func driverChanged(message []byte) (ifindex int, changed bool) {
	if len(message) < nl.SizeofGenlmsg || message[0] != netdevDevChange {
		return 0, false
	}
	index, ok := netdevAttribute(message, netdevIfindex)
	if !ok || len(index) != 4 {
		return 0, false
	}
	return int(binary.NativeEndian.Uint32(index)), true
}

// unfit is why the driver does not get the program: packets would be lost, or are better off with TC.
func (can driver) unfit(mode XDPMode, l netlink.Link) error {
	pair := isVeth(l)
	switch {
	case mode == XDPAuto && !can.said:
		return errors.New("the kernel does not say what its driver can do at XDP, as Linux 6.3 does: --xdp=native would try")
	case mode == XDPAuto && pair:
		return errors.New("it is a veth, most of whose packets have a partial checksum and are TC's: --xdp=native would not mind")
	case l.Type() == "bond":
		return errors.New("it is a bond: at XDP packets come by its members")
	case can.said && !can.takes:
		return errors.New("its driver has no XDP")
	case pair && !can.said:
		return errors.New("it is a veth, and the kernel does not say whether the other end takes what is sent at XDP, as Linux 6.3 does")
	case pair && !can.sends:
		return errors.New("it is a veth whose other end takes nothing that is sent at XDP: it has neither GRO nor a program there")
	}
	return nil
}

// isVeth tells whether the device is an end of a pair. In the driver, what such a one sends back (XDP_TX) lies at the other end until
// something else comes, unless that has a program of its own (veth_xdp_flush); what is redirected to it does not.
func isVeth(l netlink.Link) bool {
	_, pair := l.(*netlink.Veth)
	return pair
}
