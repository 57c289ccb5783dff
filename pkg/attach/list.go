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

// openNetlink is a handle of the thread's namespace. The caller closes it.
func openNetlink() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// openLinks lists the devices of the namespace. The caller closes the handle.
func openLinks() (*netlink.Handle, []netlink.Link, error) {
	h, err := openNetlink()
	if err != nil {
		return nil, nil, err
	}
	links, err := complete(h.LinkList)
	if err != nil {
		h.Close()
		return nil, nil, fmt.Errorf("list devices: %w", err)
	}
	return h, links, nil
}

// deviceOf is what a link says of its device by itself.
func deviceOf(l netlink.Link) device {
	a := l.Attrs()
	return device{
		name:        a.Name,
		ifindex:     a.Index,
		kind:        kindOf(l),
		header:      headerOf(l),
		loopback:    a.Flags&net.FlagLoopback != 0,
		idle:        a.Flags&net.FlagUp == 0 || a.Flags&net.FlagRunning == 0,
		master:      a.MasterIndex,
		veth:        l.Type() == "veth",
		peerOutside: a.NetNsID >= 0,
	}
}

// kindOf is the kernel's name of the kind of device; a tap is another one than a tun.
func kindOf(l netlink.Link) string {
	if t, ok := l.(*netlink.Tuntap); ok {
		if t.Mode == netlink.TUNTAP_MODE_TAP {
			return "tap"
		}
		return "tun"
	}
	return l.Type()
}

// headerOf is what is in front of the IP header. A GRE tunnel to anybody has a header of its own.
func headerOf(l netlink.Link) string {
	if g, ok := l.(*netlink.Gretun); ok && !g.FlowBased && (g.Remote == nil || g.Remote.IsUnspecified() || g.Remote.IsMulticast()) {
		return "gre to anybody"
	}
	return l.Attrs().EncapType
}

func addressesByDevice(h *netlink.Handle) (map[int][]address, error) {
	list, err := complete(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	found := map[int][]address{}
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if bits, _ := a.Mask.Size(); ok && !ip.Unmap().IsLinkLocalUnicast() {
			found[a.LinkIndex] = append(found[a.LinkIndex], address{netip.PrefixFrom(ip.Unmap(), bits), a.Flags, a.Scope})
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
