// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// askFamily sends a command with attributes to a family of generic netlink, and returns the answers. A kernel without the family answers nothing.
func askFamily(name string, version, command byte, flags int, attributes ...*nl.RtAttr) ([][]byte, error) {
	family, err := netlink.GenlFamilyGet(name)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("ask for netlink family %s: %w", name, err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), flags)
	request.AddRawData([]byte{command, version, 0, 0}) // struct genlmsghdr, whose last two bytes nl.Genlmsg leaves to chance
	for _, a := range attributes {
		request.AddRawData(a.Serialize())
	}
	return request.Execute(unix.NETLINK_GENERIC, 0)
}
