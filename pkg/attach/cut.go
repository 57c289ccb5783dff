// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The family ethtool of generic netlink, include/uapi/linux/ethtool_netlink.h (Linux 5.7).
const (
	ethtoolFamily  = "ethtool"
	ethtoolVersion = 1

	ethtoolFeaturesGet = 11 // commands
	ethtoolFeaturesSet = 12

	ethtoolHeader   = 1 // attributes of both
	ethtoolWanted   = 3
	ethtoolActive   = 4
	ethtoolDevIndex = 1 // u32, in the header
	ethtoolBits     = 3 // in a set of bits
	ethtoolBit      = 1
	ethtoolBitName  = 2

	cutsDatagrams = "tx-udp-segmentation"     // packets leave with several datagrams in them (UDP_SEGMENT), for the device to cut
	cutsTunneled  = "tx-udp_tnl-segmentation" // and so do those in tunnels over UDP
)

// handsOn are drivers whose devices hand such packets to another kernel as they are, for that to cut.
var handsOn = []string{"veth", "virtio_net"}

// CutDatagrams has this kernel cut datagrams before they leave by a device that would hand them to another kernel uncut: that one, if it takes them
// out of a tunnel by a program (to Linux 6.18 at least), cannot cut them any more and drops them. Segments of TCP go on uncut. It says whether it
// changed the device. Other devices stay as they are.
func CutDatagrams(device NetworkDevice) (changed bool, err error) {
	driver, err := driverOf(device.Name)
	if err != nil || !slices.Contains(handsOn, driver) {
		return false, err
	}
	active, err := askEthtool(device.Ifindex, ethtoolFeaturesGet)
	if err != nil || !slices.Contains(active, cutsDatagrams) || !slices.Contains(active, cutsTunneled) {
		return false, err
	}
	off := nl.NewRtAttr(ethtoolWanted|unix.NLA_F_NESTED, nil)
	off.AddRtAttr(ethtoolBits|unix.NLA_F_NESTED, nil).AddRtAttr(ethtoolBit|unix.NLA_F_NESTED, nil).AddRtAttr(ethtoolBitName, nl.ZeroTerminated(cutsDatagrams))
	_, err = askEthtool(device.Ifindex, ethtoolFeaturesSet, off)
	return err == nil, err
}

// driverOf is the name of a device's driver; "": it has none, or is gone.
func driverOf(name string) (string, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(socket)
	info, err := unix.IoctlGetEthtoolDrvinfo(socket, name)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("ask for the driver of %s: %w", name, err)
	}
	return unix.ByteSliceToString(info.Driver[:]), nil
}

// askEthtool sends a command about a device's features, and returns the names of those that are active, if the answer has them. A kernel without the
// family answers nothing.
func askEthtool(ifindex int, command byte, more ...*nl.RtAttr) (active []string, err error) {
	header := nl.NewRtAttr(ethtoolHeader|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(ethtoolDevIndex, nl.Uint32Attr(uint32(ifindex)))
	answers, err := askFamily(ethtoolFamily, ethtoolVersion, command, unix.NLM_F_ACK, append([]*nl.RtAttr{header}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("ask for features of device %d: %w", ifindex, err)
	}
	for _, answer := range answers {
		if len(answer) >= nl.SizeofGenlmsg {
			active = append(active, namesIn(answer[nl.SizeofGenlmsg:], ethtoolActive, ethtoolBits, ethtoolBit, ethtoolBitName)...)
		}
	}
	return active, nil
}

// namesIn are the strings that attributes hold at the end of a path of kinds.
func namesIn(message []byte, path ...uint16) (names []string) {
	if len(path) == 0 {
		return []string{unix.ByteSliceToString(message)}
	}
	attributes, err := nl.ParseRouteAttr(message)
	if err != nil {
		return nil
	}
	for _, a := range attributes {
		if a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == path[0] {
			names = append(names, namesIn(a.Value, path[1:]...)...)
		}
	}
	return names
}
