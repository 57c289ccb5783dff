// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// openLinks lists the devices of the namespace. The caller closes the handle.
func openLinks() (*netlink.Handle, []netlink.Link, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("open netlink: %w", err)
	}
	links, err := complete(h.LinkList)
	if err != nil {
		h.Close()
		return nil, nil, fmt.Errorf("list devices: %w", err)
	}
	return h, links, nil
}

// listDevices reads the devices of the namespace with what the choice of pod devices looks at.
func listDevices(h *netlink.Handle) ([]device, error) {
	links, err := complete(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	addresses, err := addressesByDevice(h)
	if err != nil {
		return nil, err
	}
	routed, err := devicesOfDefaultRoutes(h)
	if err != nil {
		return nil, err
	}
	devices := make([]device, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		devices = append(devices, device{
			name:         a.Name,
			ifindex:      a.Index,
			veth:         l.Type() == "veth",
			peerOutside:  a.NetNsID >= 0,
			addresses:    addresses[a.Index],
			defaultRoute: routed[a.Index],
		})
	}
	return devices, nil
}

func addressesByDevice(h *netlink.Handle) (map[int][]netip.Prefix, error) {
	list, err := complete(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	found := map[int][]netip.Prefix{}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if bits, _ := a.Mask.Size(); ok && !ip.Unmap().IsLinkLocalUnicast() {
			found[a.LinkIndex] = append(found[a.LinkIndex], netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return found, nil
}

// devicesOfDefaultRoutes looks in all routing tables.
func devicesOfDefaultRoutes(h *netlink.Handle) (map[int]bool, error) {
	everywhere := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := complete(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_ALL, everywhere, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	found := map[int]bool{}
	for _, r := range routes {
		if !isDefault(r.Dst) || r.Type != unix.RTN_UNICAST {
			continue
		}
		found[r.LinkIndex] = true
		for _, hop := range r.MultiPath {
			found[hop.LinkIndex] = true
		}
	}
	return found, nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0
}

// complete repeats a dump that something changed under, a few times.
func complete[T any](dump func() ([]T, error)) (list []T, err error) {
	for range 5 {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}
