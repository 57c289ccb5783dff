// SPDX-License-Identifier: Apache-2.0

package privileged

import (
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownTime is how long the kernel may take to make an address its own: as long as it may take a machine that stands still.
const ownTime = time.Minute

// AddAddress gives an address to a device of the calling thread's network namespace, and waits until it is the namespace's own.
// IPv6 makes it that some time after the call that adds it: until then there is a route to the device, on which packets are lost.
func AddAddress(link netlink.Link, address *net.IPNet) error {
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: address, Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("give %s to device %s: %w", address, link.Attrs().Name, err)
	}
	for deadline := time.Now().Add(ownTime); ; time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(address.IP)
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no route to the own address %s but %v: %v", address, routes, err)
		}
	}
}
